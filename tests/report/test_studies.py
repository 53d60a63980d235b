"""Pages of studies, saved pictures, and the data behind comparisons."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from buttress.report import write_report
from buttress.report.pages import embed_json
from buttress.report.study_page import format_table_value
from buttress.results.core import write_record_json
from buttress.results.study_result import TableValue, write_study_result
from report_runs import (
    DRAWING,
    ROBUST,
    SECOND,
    make_answer,
    make_run,
    make_spec,
    report_pages,
    words,
    write_analysis,
    write_flags,
)

SPAN = "20.0\N{EN DASH}70.0"


def test_a_study_page_shows_claims_and_published_beside_measured(
    study: Path, tmp_path: Path
) -> None:
    pages = report_pages(study, tmp_path / "out")

    page = pages["studies/made-up-smoke.html"]
    said = words(page)

    assert "Which? Source: a paper" in said
    assert "C1 ViT is best holds \N{EN DASH} undecided 25% of redrawn tables 40 against 40" in said
    assert (
        f"ViT 40.0 {SPAN} published 50.0 (-10.0) ViT / adversarial 0 , ViT / adversarial 1" in said
    )
    assert "CaiT not run published 10.0" in said
    assert f"ResNet 40.0 warning !1 not trustworthy {SPAN}" in said
    assert "!1 flat gradient" in said
    assert said.count("not trustworthy") == 1
    assert "rank correlation 0.83 (95% 0.50 to 0.95) over 12 rows" in said
    assert "train time 1 min 15 s" in said
    assert "2 of 3 runs done" in said
    assert 'href="studies/made-up-smoke.html"' in pages["index.html"]


def test_only_an_untrustworthy_number_is_struck_out(tmp_path: Path) -> None:
    made = make_answer()
    lines = [*made.rows]
    warned = lines[0].values["worst_case"].model_copy(update={"warnings": ("few images",)})
    lines[0] = lines[0].model_copy(update={"values": {"worst_case": warned}})
    write_study_result(tmp_path, made.model_copy(update={"rows": tuple(lines)}))

    page = report_pages(tmp_path, tmp_path / "out")["studies/made-up-smoke.html"]

    assert re.search(r'<b title="[^"]*">40.0</b>.*few images', page, re.S)
    assert page.count('<b class="doubtful"') == 1


def test_a_study_links_the_pages_of_its_runs_and_shows_their_pictures(
    study: Path, tmp_path: Path
) -> None:
    pages = report_pages(study, tmp_path / "out")
    page = pages["studies/made-up-smoke.html"]

    linked = {f"models/{m}" for m in re.findall(r'href="\.\./models/([^"]+)"', page)}

    assert linked == {name for name in pages if name.startswith("models/vit_tiny")}
    result = re.findall(r'<img alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert [alt for alt, _ in result] == ["All runs in one picture", "Images move 0.4 on average"]
    assert {base64.b64decode(data).decode() for _, data in result} == {DRAWING}


def test_pictures_of_analyses_are_on_the_page_of_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", make_spec(), ROBUST)
    write_analysis(run, "stability", {}, summary="It is stable", svg=DRAWING)
    write_analysis(run, "other", {}, svg="no drawing at all")
    reason = {"analysis": "sparsity", "result": None, "does_not_apply": "it has no weights"}
    write_record_json(run.analysis_file("sparsity"), reason)

    (page,) = (p for n, p in report_pages(tmp_path, tmp_path / "out").items() if "models/" in n)

    assert 'alt="It is stable" src="data:image/svg+xml;base64,' in page
    assert page.count("data:image/svg+xml") == 1
    assert "sparsity does not apply: it has no weights" in words(page)
    assert "unreadable" not in words(page)


def test_fine_tuning_names_its_source_and_links_it(tmp_path: Path) -> None:
    first = make_run(tmp_path / "runs" / "a", make_spec(), ROBUST)
    origin = {"source": "a", "key": first.header["key"], "which": "best", "new": ["head.weight"]}
    make_run(tmp_path / "runs" / "b", make_spec("cait_tiny"), SECOND, origin=origin)

    pages = report_pages(tmp_path / "runs", tmp_path / "out")

    page = next(p for n, p in pages.items() if n.startswith("models/cait"))
    heading = re.search(r"<h3>Fine-tuned from <a href=\"\.\./(models/[^\"]+)\"", page)
    assert heading is not None
    assert heading[1] in pages
    assert 'new ["head.weight"]' in words(page)


def test_findings_of_evaluations_are_on_the_page_of_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", make_spec(), ROBUST)
    finding = {"check": "zero_gradient", "severity": "warning", "message": "it is flat",
               "evidence": {"flat": 0.25}, "remedy": "look"}  # fmt: skip
    write_flags(run, "pgd-linf", ROBUST["pgd-linf"], findings=[finding, {"of": "another form"}])

    (page,) = (p for n, p in report_pages(tmp_path, tmp_path / "out").items() if "models/" in n)

    assert "warning zero gradient : it is flat; look flat 0.25" in words(page)


def test_a_study_without_runs_has_its_page_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    write_study_result(tmp_path, make_answer())
    (tmp_path / "studies" / "broken-smoke").mkdir()
    (tmp_path / "studies" / "broken-smoke" / "answer.json").write_text("{}")

    pages = report_pages(tmp_path, tmp_path / "out")

    assert set(pages) == {"index.html", "studies/made-up-smoke.html"}
    assert "broken-smoke/answer.json is unreadable" in words(pages["index.html"])
    assert str(tmp_path) not in pages["index.html"]


def test_an_answer_elsewhere_is_shown_once(study: Path, tmp_path: Path) -> None:
    answer = study / "studies" / "made-up-smoke" / "answer.json"

    write_report(
        [study, study / "studies" / "made-up-smoke"], tmp_path / "out", study_results=[answer]
    )

    assert len(list((tmp_path / "out" / "studies").iterdir())) == 1


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        (TableValue(value=0.5, published=0.512), "percent", ("50.0", "51.2", "-1.2")),
        (TableValue(value=12.3456, published=10.0), "number", ("12.35", "10", "+2.35")),
        (TableValue(value=float("inf"), published=0.1), "percent", ("", "10.0", "")),
    ],
)
def test_numbers_in_their_unit(number: TableValue, unit: str, expected: tuple[str, ...]) -> None:
    result = format_table_value(number, unit, {})
    assert (result.value, result.published, result.difference) == expected


def test_comparisons_hold_a_bit_per_image(runs: Path, tmp_path: Path) -> None:
    page = report_pages(runs, tmp_path / "out")["compare.html"]

    data = re.search(r'<script type="application/json" id="flags">(.*?)</script>', page)
    assert data is not None
    (group,) = json.loads(data[1])

    assert group["columns"] == ["worst-case robust accuracy", "clean", "pgd-linf", "pgd-l2"]
    vit = next(r for r in group["rows"] if r["name"].startswith("vit_tiny"))
    bits = [np.unpackbits(np.frombuffer(base64.b64decode(f), np.uint8)) for f in vit["flags"]]
    assert [b[:10].tolist() for b in bits[1:]] == list(ROBUST.values())
    assert bits[0].sum() == 4


def test_embedded_text_cannot_leave_its_element() -> None:
    text = "</script><!--<script>&\u2028"
    result = embed_json({"name": text})
    assert not set("<>&\u2028") & set(result)
    assert json.loads(result) == {"name": text}


def test_rows_carry_what_filters_ask_for(runs: Path, tmp_path: Path) -> None:
    page = report_pages(runs, tmp_path / "out")["index.html"]

    rows = re.findall(r'data-category="(\w+)" data-training="(\w+)" data-text="([^"]*)"', page)

    assert [row[:2] for row in rows] == [
        ("transformer", "pgd_at"),
        ("cnn", "pgd_at"),
        ("cnn", "standard"),
    ]
    assert rows[0][2] == "vit_tiny transformer pgd_at L∞ 0.1 small-pgd_at digits quick"
    assert re.findall(r"<section[^>]* data-dataset=\"digits\" data-suite=\"quick\"", page)
