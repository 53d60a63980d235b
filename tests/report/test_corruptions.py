"""Corruptions in a report: one column, whatever their number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from report_runs import make_run, make_spec, report_pages, write_flags

ENTRIES = [(name, severity) for name in ("fog", "snow") for severity in (1, 3)]
NAMES = [f"{name}-{severity}" for name, severity in ENTRIES]
# Ten images; the first is wrong clean and right in fog: 8, 6, 5 and 4 of ten are right.
FLAGS = {
    "fog-1": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
    "fog-3": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    "snow-1": [0, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    "snow-3": [0, 1, 1, 1, 1, 0, 0, 0, 0, 0],
}


def write(root: Path, *, counts: bool = True, without: tuple[str, ...] = ()) -> None:
    run = make_run(root / "a", make_spec("vit_tiny"))
    said: dict[str, Any] = {
        "suite_attacks": ["clean", *NAMES, "pgd-linf"],
        "suite_corruptions": NAMES,
    }
    write_flags(run, "clean", [0, *[1] * 9], **said)
    write_flags(run, "pgd-linf", [0, *[1] * 8, 0], **{**said, "position": 9})
    for place, (name, severity) in enumerate(ENTRIES, 1):
        entry = f"{name}-{severity}"
        if entry not in without:
            made: dict[str, Any]
            made = {"attack": "corruption", "threat": "", "position": place, "counts": counts}
            made |= {"args": {"corruption": name, "severity": severity}}
            write_flags(run, entry, FLAGS[entry], **made, **said)


def leaderboard(root: Path, out: Path) -> tuple[list[str], str]:
    page = report_pages(root, out)["index.html"]
    table = re.findall(r'<table class="leaderboard".*?</table>', page, flags=re.S)[0]
    titles = [re.sub(r"<[^>]+>", " ", t) for t in re.findall(r"<th .*?</th>", table, flags=re.S)]
    body = table.partition("<tbody>")[2]
    return [t.split()[0] for t in titles if t.split()], " ".join(
        re.sub("<[^>]+>", " ", body).split()
    )


@pytest.mark.parametrize(("counts", "worst"), [(True, "40.0"), (False, "80.0")])
def test_they_are_one_column_with_their_mean(tmp_path: Path, counts: bool, worst: str) -> None:
    write(tmp_path / "runs", counts=counts)
    titles, row = leaderboard(tmp_path / "runs", tmp_path / "out")
    assert titles.count("corruptions") == 1
    assert not set(titles) & set(NAMES)
    # (8 + 6 + 5 + 4) / 40 of all images, also those that are wrong clean
    assert re.search(rf"{worst} \S+ 90.0 \S+ 57.5 \S+ 80.0", row), row


def test_one_that_is_missing_is_not_averaged_over(tmp_path: Path) -> None:
    write(tmp_path / "runs", without=("snow-3",))
    titles, row = leaderboard(tmp_path / "runs", tmp_path / "out")
    assert titles.count("corruptions") == 1
    assert "missing" in row
    assert "57.5" not in row


def test_images_made_here_and_published_ones_are_two_columns(tmp_path: Path) -> None:
    """And what could not be made as published is said on the pages."""
    drawn = {
        "name": "not_as_published", "severity": "note", "said": "drawn", "remedy": "look",
        "evidence": {"corruption": "frost"},
    }  # fmt: skip
    for model, images, findings in (
        ("vit_tiny", "digits+frost-1 version 1", [drawn]),
        ("resnet_tiny", "digits+frost-1-official", []),
    ):
        run = make_run(tmp_path / "runs" / model, make_spec(model))
        said: dict[str, Any]
        said = {"suite_attacks": ["clean", "frost-1"], "suite_corruptions": ["frost-1"]}
        write_flags(run, "clean", [1, 1, 1, 1], **said)
        args = {"corruption": "frost", "severity": 1}
        made: dict[str, Any]
        made = {"attack": "corruption", "threat": "", "args": args, "images": images}
        write_flags(run, "frost-1", [1, 1, 1, 0], **made, **said, findings=findings)
    pages = report_pages(tmp_path / "runs", tmp_path / "out")
    assert "made here, frost not as published" in pages["index.html"]
    assert "the published images" in pages["index.html"]
    titles, _ = leaderboard(tmp_path / "runs", tmp_path / "out")
    assert titles.count("corruptions") == 2
    shown = ["drawn; look" in page for name, page in pages.items() if "models/" in name]
    assert sorted(shown) == [False, True]
