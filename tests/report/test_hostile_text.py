"""Whatever text is in records, pages keep their structure: no tag or attribute comes from it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from buttress.config import ComponentSpec
from buttress.report import write_report
from buttress.results.core import write_record_json
from buttress.results.run_spec import RunSpec
from report_runs import (
    DRAWING,
    gallery,
    make_answer,
    make_run,
    make_spec,
    write_analysis,
    write_flags,
)

HARMLESS = "plain"
HOSTILE = [
    "<script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "javascript:alert(1)",
    "</title></style></script><img src=x onerror=alert(1)>",
    "line one\nline two\r\n<b>",
    "--><!--",
    "{{ 7 * 7 }}{% raw %}",
    "]]><![CDATA[",
    "&lt;script&gt;&quot;",
    "\u2028\u202e<i>",
]
KINDS = {"index", "compare", "studies", "done", "finetuned", "failed"}
LINKS = (
    "data:", "#", "index.html", "models/", "studies/", "compare.html", "../index.html",
    "../models/", "../compare.html",
)  # fmt: skip


class Structure(HTMLParser):
    """The tags with the names of their attributes, and all addresses."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.addresses += [v or "" for n, v in attrs if n in ("href", "src", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


def spec_of(text: str, seed: int = 0) -> RunSpec:
    spec = make_spec(text, seed=seed)
    recipe = spec.recipe.model_copy(
        update={"name": text, "objective": ComponentSpec(name="pgd_at", args={text: text})}
    )
    return spec.model_copy(update={"dataset": text, "recipe": recipe, "model_args": {text: text}})


def pages(root: Path, text: str) -> dict[str, Structure]:
    """A report about runs that carry a text in every field that has room for one."""
    flags = [1, 0, 1, 1, 0]
    runs = root / "runs"
    run = make_run(runs / "a", spec_of(text), category=text)
    made: dict[str, Any]
    made = {"warnings": [text], "class_names": [text] * 5, "command": text, "dataset": text}
    write_flags(run, "clean", flags, split=text, **made)
    write_flags(run, "pgd-l1", flags, threat=text, attack=text, args={text: text}, **made)
    write_analysis(run, "gallery", {**gallery(1), "classes": [text] * 5, "attack": text})
    write_analysis(run, "stability", {}, summary=text, svg=DRAWING)
    write_record_json(run.analysis_file("other"), {"analysis": text, "does_not_apply": text})
    other = make_run(runs / "d", spec_of(text, seed=2), category=text, origin={"source": text})
    write_flags(other, "clean", flags, split=text, **made)
    finding = {"check": text, "severity": "warning", "message": text, "remedy": text}
    write_flags(other, "pgd-l1", flags, threat=text, attack=text, args={text: text},
                **{**made, "findings": [{**finding, "evidence": {text: text}}]})  # fmt: skip
    make_run(runs / "b", spec_of(text, seed=1), done=False).fail(text)
    keys = (run.header["key"], text)
    answer = make_answer(text, keys).model_copy(update={"failed_runs": {text: text}})
    write_record_json(root / "answer.json", answer.model_dump(mode="json"))
    (runs / "c").mkdir()
    (runs / "c" / "run.json").write_text(text)
    answers = [root / "answer.json"]
    write_report([runs], root / "out", title=text, subtitle=text, study_results=answers)
    result = sorted((root / "out").rglob("*.html"))
    return {kind_of(p): Structure(p.read_text(encoding="utf-8")) for p in result}


def kind_of(page: Path) -> str:
    """Pages of runs are named by their keys, which differ: what is on them tells them apart."""
    if page.parent.name != "models":
        return page.parent.name if page.parent.name == "studies" else page.stem
    content = page.read_text(encoding="utf-8")
    if "Adversarial examples" in content:
        return "done"
    return "finetuned" if "Fine-tuned from" in content else "failed"


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Structure]:
    return pages(tmp_path_factory.mktemp("harmless"), HARMLESS)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_changes_no_structure(
    text: str, harmless: dict[str, Structure], tmp_path: Path
) -> None:
    hostile = pages(tmp_path, text)
    assert set(hostile) == set(harmless) == KINDS
    for name, page in hostile.items():
        assert page.tags == harmless[name].tags, name
        assert all(a.startswith(LINKS) for a in page.addresses), name
        assert not any(attr.startswith("on") for _, attrs in page.tags for attr in attrs)
    shown = " ".join(hostile["index"].text.split())
    assert " ".join(text.split()) in shown  # it is shown as it is, not dropped


@pytest.mark.parametrize("name", ["../../escaped", "<script>", "..", "a\nb", "%2e%2e%2fx"])
def test_pages_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    """The key in run.json names a page, and anyone can write a run.json."""
    run = make_run(tmp_path / "runs" / "a", make_spec(), {"clean": [1, 0]})
    header = run.header
    write_record_json(run.path / "run.json", {**header, "key": name})
    write_report([tmp_path / "runs"], tmp_path / "site" / "out")
    written = {p for p in tmp_path.rglob("*.html")}
    assert len(written) == 2
    assert all(p.is_relative_to(tmp_path / "site" / "out") for p in written)
