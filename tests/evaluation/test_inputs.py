"""`bt.evaluate` and `bt.diagnose` with what users have: arrays, loaders, an eps, no suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import buttress as bt
from buttress.errors import UserError
from conftest import images, small_net

MODEL = small_net(10)
X, _ = images(6, classes=10)
Y = MODEL(X).argmax(1)  # so that attacks have something to do
Y[0] = (Y[0] + 1) % 10


def test_arrays_and_loaders_give_what_a_dataset_gives() -> None:
    classes = tuple(map(str, range(10)))
    data = bt.Dataset.from_arrays(X, Y, classes=classes)
    expected = bt.evaluate(MODEL, data, ["pgd:Linf:2/255"])
    assert expected.accuracy["clean"] == pytest.approx(5 / 6)
    loader = DataLoader(TensorDataset(X, Y), 4, shuffle=True)
    for given in ((X, Y), (X.numpy(), Y.tolist()), TensorDataset(X, Y), loader):
        evaluation = bt.evaluate(MODEL, given, ["pgd:Linf:2/255"])
        assert {k: v.tolist() for k, v in evaluation.correct.items()} == {
            k: v.tolist() for k, v in expected.correct.items()
        }
        assert evaluation.metadata["data_fingerprint"] == expected.metadata["data_fingerprint"]
        assert evaluation.metadata["class_names"] == list(classes)


class Examples(torch.utils.data.Dataset[Any]):
    """What examples of Hugging Face datasets look like."""

    def __init__(self, image: str, label: str) -> None:
        self.keys = image, label

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return dict(zip(self.keys, (X[position], int(Y[position])), strict=True))


BATCHES = [(X[:4], Y[:4]), (X[4:], Y[4:])]
FORMS: dict[str, Any] = {
    "list of two": [X, Y],
    "mapping": {"image": X, "label": Y},
    "pixel_values": Examples("pixel_values", "labels"),
    "batches of mappings": DataLoader(Examples("img", "label"), 4),
    "batches": BATCHES,
    "batches as lists": [list(batch) for batch in BATCHES],
    "iterator of a loader": iter(DataLoader(TensorDataset(X, Y), 4)),
    "pairs": list(zip(X, Y, strict=True)),
    "dataset as torch reads it": DataLoader(bt.Dataset.from_arrays(X, Y), 4),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("form", FORMS)
def test_images_in_the_forms_that_users_have(form: str) -> None:
    evaluation = bt.evaluate(MODEL, FORMS[form], "clean")
    assert evaluation.correct["clean"].tolist() == [False] + 5 * [True]


def test_attack_objects_are_suites() -> None:
    pgd = bt.attacks.PGD(eps=2 / 255, steps=3)
    evaluation = bt.evaluate(MODEL, (X, Y), [pgd, "pgd:Linf:1/255", bt.attacks.PGD(eps=1 / 255)])
    assert [*evaluation.records] == ["clean", "pgd-linf", "pgd:Linf:1_255", "pgd-linf-no-2"]
    record = evaluation.records["pgd-linf"]
    assert (record.metadata["threat"], record.metadata["args"]) == ("Linf:2/255", {"steps": 3})
    alone = bt.evaluate(MODEL, (X, Y), pgd)
    assert alone.correct["pgd-linf"].tolist() == evaluation.correct["pgd-linf"].tolist()


def test_without_a_suite_the_fast_ensemble_is_used(tmp_path: Path) -> None:
    evaluation = bt.evaluate(MODEL, (X, Y), eps=1 / 255, limit=3, out=str(tmp_path))
    assert evaluation.suite == "fast-linf:1/255"
    assert len(evaluation) == 3
    record = evaluation.records["fast-linf"]
    assert record.metadata["threat"] == "Linf:1/255"
    assert (tmp_path / "fast-linf.parquet").is_file()
    assert "fast-l2" in bt.evaluate(MODEL, (X, Y), norm="L2", limit=3).accuracy


def test_a_suite_takes_one_threat_model() -> None:
    evaluation = bt.evaluate(MODEL, (X, Y), "pgd-linf", threat="L2:0.1", limit=2)
    assert [r.metadata["threat"] for r in evaluation.records.values()] == ["", "L2:0.1"]


def test_the_doctor_takes_arrays_and_a_norm() -> None:
    diagnosis = bt.diagnose(MODEL, (X, Y), norm="L2", limit=2)
    assert diagnosis.threat == "L2:0.5"
    assert bt.diagnose(MODEL, (X, Y), eps=2 / 255, limit=2).threat == "Linf:2/255"


def test_curves_and_minimum_norms_take_arrays() -> None:
    curve = bt.accuracy_curve(MODEL, (X, Y), "fgsm", "Linf", [0, 1 / 255])
    assert curve.accuracy[0] == pytest.approx(5 / 6)
    norms = bt.minimum_norms(MODEL, (X, Y), attacks=["fab"])
    assert (norms.best == 0).sum() == 1  # the one with a wrong label
    assert repr(norms).startswith("MinimumNorms(Linf, 6 images, medians: fab ")


class WrongSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 3)


MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "name of a model": ({"model": "resnet_tiny"}, ("bt.load_model('resnet_tiny')",)),
    "swapped": ({"model": (X, Y), "data": MODEL}, ("torch.nn.Module", "got tuple")),
    "images alone": ({"data": X}, ("pass (images, labels)",)),
    "too few outputs": ({"model": WrongSize()}, ("model returns 3",)),
    "unknown suite": ({"suite": "quikstart"}, ("did you mean 'quickstart'",)),
    "attack as a suite": ({"suite": "pdg"}, ("unknown suite or attack 'pdg'", "'pgd'")),
    "eps and threat": ({"eps": 0.1, "threat": "Linf:0.1"}, ("given once",)),
    "limit": ({"limit": 7}, ("the data has 6 images", "limit=7")),
    "no image": ({"limit": 0}, ("`limit >= 1`",)),
    "attack=": ({"attack": "pgd"}, ("it is called `suite`", "['clean', 'pgd-linf']")),
    "n_examples=": ({"n_examples": 3}, ("it is called `limit`",)),
    "device=": ({"device": "cuda"}, ("use model.to(device)",)),
    "steps=": ({"suite": "pgd", "steps": 20}, ("bt.attacks.PGD(eps=8/255, steps=20)",)),
    "threat_model=": ({"threat_model": "Linf"}, ("eps=8/255 and norm='Linf'",)),
    "ensembles at one eps": ({"suite": "autoattack", "eps": 0.1}, ("autoattack-linf",)),
    "splits": ({"data": {"train": (X, Y), "test": (X, Y)}}, ("data['test']",)),
    "seed of an attack": (
        {"suite": bt.attacks.PGD(eps=0.1, seed=3)},
        ("pass them to bt.evaluate",),
    ),
    "path of a model": ({"model": Path("runs/r1")}, ("bt.load_model('runs/r1')",)),
    "channels": ({"data": (X[:, :1], Y)}, ("cannot take images of shape (1, 8, 8)",)),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_answered(case: str) -> None:
    given, words = MISTAKES[case]
    with pytest.raises(UserError) as caught:
        bt.evaluate(**{"model": MODEL, "data": (X, Y), **given})
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)


def test_labels_beyond_the_outputs_are_refused() -> None:
    with pytest.raises(UserError, match=r"12 classes, but the model returns 10"):
        bt.evaluate(MODEL, (X, torch.tensor([0, 1, 2, 3, 4, 11])), "clean")
