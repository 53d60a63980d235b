"""Published numbers are rows of a table and touch nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from buttress.cli.main import run_cli
from buttress.report import write_report
from report_runs import ROBUST, make_run, make_spec, write_flags

PUBLISHED: dict[str, Any] = {
    "dataset": "digits",
    "name": "A paper",
    "architecture": "WRN-28-10",
    "venue": "ICML 2030",
    "link": "https://example.org/a",
    "eps": "8/255",
    "clean_acc": "99.90",
    "autoattack_acc": "88.80",
}


def publish(root: Path, file: str = "Linf/Doe2030First", **changes: Any) -> Path:
    path = root / "model_info" / "digits" / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**PUBLISHED, **changes}))
    return root / "model_info"


def page(roots: Path, out: Path, *references: Path) -> str:
    return write_report([roots], out, references=references).read_text()


def table_rows(text: str) -> list[str]:
    return re.findall(r"<tr.*?</tr>", text, flags=re.S)


def without_references(text: str) -> str:
    """A page with everything about references taken out again."""
    text = re.sub(r"<tr class=\"published\" .*?</tr>\n", "", text, flags=re.S)
    return re.sub(r"<p class=\"about\">Rows marked.*?</p>\n", "", text, flags=re.S)


@pytest.fixture
def attacked(tmp_path: Path) -> Path:
    """A run with AutoAttack among its attacks."""
    run = make_run(tmp_path / "runs" / "a", make_spec(), ROBUST)
    write_flags(run, "aa", [1, 1, 0, 0, 0, 0, 0, 0, 0, 0], attack="autoattack",
                threat="Linf:8/255", args={}, square_queries="all")  # fmt: skip
    return tmp_path / "runs"


def test_a_published_row_stands_beside_ours_and_changes_nothing(
    attacked: Path, tmp_path: Path
) -> None:
    plain = page(attacked, tmp_path / "plain")

    text = page(attacked, tmp_path / "out", publish(tmp_path))

    (row,) = [r for r in table_rows(text) if 'class="published"' in r]
    assert '<a href="https://example.org/a" rel="noopener noreferrer"' in row
    assert "published, not evaluated here" in row
    assert "WRN-28-10, ICML 2030" in row
    values = re.findall(r'data-value="([^"]*)"', row)
    # rank, name, training, worst case, clean, PGD in two norms, AutoAttack: ours sort with these
    assert values == ["", "Doe2030First", "", "", "0.9990000000000001", "", "", "0.888"]
    assert without_references(text) == plain  # headline, ranks, best values, figures, method


def test_a_number_without_a_column_of_ours_gets_one(runs: Path, tmp_path: Path) -> None:
    publish(tmp_path)
    publish(tmp_path, "corruptions/Roe2030Second", corruptions_acc="70", eps=None)

    text = page(runs, tmp_path / "out", tmp_path / "model_info")

    heads = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", text, flags=re.S)
    assert "autoattack L∞ 8/255 <small>published</small>" in heads
    assert "corruptions <small>published</small>" in heads
    board = text.split("<tbody>")[0].rsplit("<thead>", 1)[1].count("<th ")
    rows = table_rows(text.split("<tbody>", 1)[1].split("</tbody>")[0])
    assert len(rows) == 5
    assert {len(re.findall(r"<t[dh]\b", r)) for r in rows} == {board}
    own = next(r for r in rows if "vit_tiny" in r)
    assert "0.888" not in own


def test_other_arguments_or_another_eps_are_another_column(attacked: Path, tmp_path: Path) -> None:
    text = page(attacked, tmp_path / "out", publish(tmp_path, eps="4/255"))
    assert "autoattack L∞ 4/255 <small>published</small>" in text


def test_unsafe_links_and_hostile_text_do_nothing(attacked: Path, tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>\"' onmouseover=x"
    for k, link in enumerate(["javascript:alert(1)", "data:text/html,x", "//x", "https://a b",
                              "JaVaScRiPt://x", 'https://a"onclick=x']):  # fmt: skip
        publish(tmp_path, f"Linf/X{k}", link=link, name=bad, venue=bad, architecture=bad)

    text = page(attacked, tmp_path / "out", tmp_path / "model_info")

    rows = [r for r in table_rows(text) if 'class="published"' in r]
    assert len(rows) == 6
    assert not any("<a " in r or "<script" in r for r in rows)
    assert "&lt;script&gt;" in rows[0]


def test_doubts_of_the_source_are_shown(attacked: Path, tmp_path: Path) -> None:
    text = page(attacked, tmp_path / "o", publish(tmp_path, unreliable="true", external="70.1"))
    assert "marked unreliable by its source; lowest accuracy reported by others: 70.1" in text


def test_what_cannot_be_shown_is_named(attacked: Path, tmp_path: Path) -> None:
    publish(tmp_path, "Linf/Other", dataset="cifar10")
    publish(tmp_path, "Linf/Wrong", clean_acc="lots")
    (tmp_path / "model_info" / "digits" / "Linf" / "Half.json").write_text("{")

    text = page(attacked, tmp_path / "out", tmp_path / "model_info")

    assert "1 published record for cifar10 not shown: no model here was evaluated on it" in text
    assert "model_info/digits/Linf/Half.json: not valid JSON, skipped" in text
    assert "Wrong.json: &#39;clean_acc&#39; must be a percentage" in text
    assert str(tmp_path) not in text


def test_the_command_takes_references(
    attacked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    args = ["report", str(attacked), "--out", str(out), "--reference"]
    assert run_cli([*args, str(publish(tmp_path))]) == 0
    assert "Doe2030First" in (out / "index.html").read_text()
    assert run_cli([*args, str(tmp_path / "nothing")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
