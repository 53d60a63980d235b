"""How results look in a terminal and in a notebook: short, with intervals, and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import buttress as bt
from buttress.evaluation import accuracy_curve
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.results.run import Run
from conftest import images, small_net

MODEL = small_net(4)
X, _ = images(8, classes=4)
Y = MODEL(X).argmax(1)
Y[0] = (Y[0] + 1) % 4
DATA = bt.Dataset.from_arrays(X, Y, name="<b>mine", classes=["<i>0", "b", "c", "d"])
EVALUATION = bt.evaluate(MODEL, DATA, ["clean", "pgd:Linf:2/255", "corruption:brightness:1"])
DIAGNOSIS = Diagnosis(
    threat="Linf:8/255", dataset="digits", split="test", images=256, seed=0,
    weights_digest="a" * 64, data_fingerprint="b" * 64, checks=(), findings=(),
)  # fmt: skip


def test_texts_say_what_matters() -> None:
    assert repr(DATA) == "Dataset('<b>mine', 'all', 8 images of 3x8x8, 4 classes)"
    assert re.match(
        r"Evaluation\('custom', 8 images of <b>mine all: clean accuracy 87\.5% \[52\.9%, 97\.8%\], "
        r"worst-case robust accuracy \d+\.\d% \[",
        repr(EVALUATION),
    )
    assert "brightness" not in repr(EVALUATION)
    record = EVALUATION.records["clean"]
    assert repr(record) == "AttackRecord('clean', 8 images, accuracy 87.5%)"
    assert repr(DIAGNOSIS) == ("Diagnosis(trustworthy, Linf:8/255 on 256 images of digits test)")


@pytest.mark.parametrize("text", ["Linf:8/255", "L0:24", "patch:5", "spatial:30,3", "jpeg-l2:1"])
def test_a_threat_model_is_shown_as_it_is_written(text: str) -> None:
    threat = bt.Threat.parse(text)
    assert repr(threat) == f"Threat.parse({text!r})"
    assert eval(repr(threat), {"Threat": bt.Threat}) == threat


def test_nothing_prints_its_arrays() -> None:
    comparison = bt.compare(EVALUATION, EVALUATION)
    curve = accuracy_curve(MODEL, DATA, "fgsm", "Linf", [0, 2 / 255])
    result = bt.attacks.FGSM(eps=2 / 255).run(MODEL, X, Y)
    for value in (DATA, EVALUATION, EVALUATION.records, DIAGNOSIS, comparison, curve, result):
        assert "tensor(" not in repr(value)
        assert "array(" not in repr(value)
        assert len(repr(value)) < 600
    assert "No significant difference in worst-case robust accuracy" in repr(comparison)
    assert repr(curve).startswith("AccuracyCurve(Linf, 8 images, 0: 87.5%, 0.007843: ")
    assert re.fullmatch(r"AttackResult\(\d of 8 images fooled\)", repr(result))


class Elements(HTMLParser):
    """The elements of a page; unclosed ones stay in `open`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_an_evaluation_is_a_table_with_bars() -> None:
    page = EVALUATION._repr_html_()
    elements = Elements(page)
    assert elements.open == []
    assert elements.seen.count("svg") == 4  # clean, pgd, corruptions, worst case
    assert elements.seen.count("tr") == 5
    assert "87.5%" in page
    assert "[52.9%, 97.8%]" in page
    assert "&lt;b&gt;mine" in page
    assert "i" not in elements.seen  # class names are escaped


def test_a_dataset_shows_its_first_images() -> None:
    elements = Elements(DATA._repr_html_())
    assert elements.open == []
    assert elements.seen.count("img") == 8
    assert not {"i", "b"} & set(elements.seen)
    gray = bt.Dataset.from_arrays(torch.rand(30, 1, 8, 8), torch.zeros(30, dtype=torch.int64))
    assert Elements(gray._repr_html_()).seen.count("img") == 10


def test_a_run_shows_its_training_and_its_accuracy(tmp_path: Path) -> None:
    run = bt.train("resnet_tiny", "digits", "smoke-at", out=tmp_path / "<r1>", limit=60)
    assert "resnet_tiny on digits by smoke-at, seed 0, done, clean accuracy " in repr(run)
    assert repr(run).endswith("] on 20 validation images)")
    page = run._repr_html_()
    assert Elements(page).open == []
    assert Elements(page).seen.count("svg") == 2  # clean and robust
    assert "&lt;r1&gt;" in page
    (run.path / "done.json").write_text("{")
    assert repr(run) == f"Run({str(run.path)!r})"
    missing = Run(tmp_path / "none")
    assert repr(missing) == f"Run({str(missing.path)!r})"
    assert Elements(missing._repr_html_()).open == []


def test_a_diagnosis_is_a_table_of_findings() -> None:
    finding = Finding(check="few_images", severity="note", message="only <8>", remedy="use more")
    page = DIAGNOSIS.model_copy(update={"findings": (finding,)})._repr_html_()
    assert Elements(page).open == []
    assert "only &lt;8&gt;" in page
    assert "<table" not in DIAGNOSIS._repr_html_()


def test_a_comparison_is_a_table() -> None:
    page = bt.compare(EVALUATION, EVALUATION)._repr_html_()
    assert Elements(page).open == []
    assert "A - B in points" in page
    assert ">pgd:Linf:2_255<" in page
    assert ">worst-case robust accuracy<" in page
    assert "both sides have the same model weights" in page
