"""Tables of many runs: rows after the first page are packed, and pages stay small."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from buttress.report import write_report
from buttress.report.pages import MAX_FLAG_CHARS, comparison_group, pack_html
from report_runs import make_run, make_spec

PACKED = re.compile(r'data-packed data-total="(\d+)">([^<]+)</script>')


def test_every_run_is_in_the_page_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buttress.report.pages.PAGE_ROWS", 3)
    for k in range(7):
        make_run(
            tmp_path / "runs" / f"r{k}", make_spec(seed=k), {"clean": [1, 0], "pgd-l2": [1, 0]}
        )
        make_run(tmp_path / "runs" / f"bad{k}", make_spec("cait_tiny", seed=k), done=False)
    page = write_report([tmp_path / "runs"], tmp_path / "out").read_text()

    packed = PACKED.findall(page)
    rows = [zlib.decompress(base64.b64decode(text)).decode() for _, text in packed]
    assert [total for total, _ in packed] == ["7", "7"]  # the leaderboard, unfinished runs
    assert [html.count("<tr") for html in rows] == [4, 4]
    links = re.findall(r'href="models/([^"]+)"', PACKED.sub("", page) + "".join(rows))
    assert {name for name in links} == {f.name for f in (tmp_path / "out" / "models").iterdir()}
    assert "The first 3 of 7 rows; the others need JavaScript" in page


def test_a_short_table_has_no_packed_rows(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", make_spec(), {"clean": [1, 0], "pgd-l2": [1, 0]})
    assert not PACKED.search(write_report([tmp_path / "runs"], tmp_path / "out").read_text())


def test_packed_rows_weigh_less_than_a_quarter() -> None:
    rng = np.random.default_rng(0)
    row = '<tr><th><a href="models/{0}.html">{0}</a></th><td class="n">{1}</td></tr>'
    rows = "".join(
        row.format(f"vit_tiny-{rng.bytes(6).hex()}", rng.integers(1000)) for _ in range(500)
    )
    assert len(pack_html(rows)) < 0.25 * len(rows)


def test_the_page_of_comparisons_stays_small_with_many_images(tmp_path: Path) -> None:
    from buttress.report.collect import collect_runs
    from buttress.report.leaderboard import build_leaderboards
    from buttress.system.progress import SilentProgress

    for k in range(12):
        flags = {"clean": np.ones(3000, bool), "pgd-l2": np.zeros(3000, bool)}
        make_run(tmp_path / "runs" / f"r{k}", make_spec(seed=k), flags)
    runs = collect_runs([tmp_path / "runs"], SilentProgress()).runs
    (board,) = build_leaderboards(runs)

    group = comparison_group(board, 10_000)
    assert len(group["rows"]) == 6
    assert group["left_out"] == 6
    assert sum(len(flag) for row in group["rows"] for flag in row["flags"]) <= 10_000
    assert len(comparison_group(board, MAX_FLAG_CHARS)["rows"]) == 12
