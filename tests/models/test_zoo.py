"""Models of the zoo load as they were measured."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import buttress as bt
from buttress.errors import UnknownNameError, UserError
from buttress.export import export_zoo
from buttress.models.loading import zoo
from buttress.models.saving import WEIGHTS_FILE, round_to_half, write_description, write_weights

MAX_BYTES = 12_000_000  # of all models, in the wheel


@pytest.fixture
def small_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bt.models.Classifier:
    """A zoo with one model; returns that model with rounded weights."""
    monkeypatch.setattr(zoo, "ZOO", tmp_path)
    model = bt.create_model("resnet_tiny", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1), seed=3)
    round_to_half(model)
    folder = tmp_path / "resnet_tiny"
    folder.mkdir()
    sha256 = write_weights(folder, model, half=True)
    write_description(folder, model, {}, sha256, name="resnet_tiny")
    return model.eval()


def test_a_model_of_the_zoo_gives_the_logits_of_the_rounded_model(
    small_zoo: bt.models.Classifier,
) -> None:
    loaded = bt.load_model("zoo:resnet_tiny")
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(x), small_zoo(x))
    assert bt.list_models("zoo") == ["zoo:resnet_tiny"]


def test_half_precision_halves_the_file(small_zoo: bt.models.Classifier, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    write_weights(tmp_path / "whole", small_zoo)
    half = (tmp_path / "resnet_tiny" / WEIGHTS_FILE).stat().st_size
    assert half < 0.65 * (tmp_path / "whole" / WEIGHTS_FILE).stat().st_size


def test_an_unknown_name_is_answered_with_a_near_one(small_zoo: bt.models.Classifier) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'zoo:resnet_tiny'"):
        bt.load_model("zoo:resnet_tini")


def test_the_whole_zoo_is_exported_and_loads_again(
    small_zoo: bt.models.Classifier, tmp_path: Path
) -> None:
    (folder,) = export_zoo(tmp_path / "exported")
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bt.load_model(folder)(x), small_zoo(x))
    with pytest.raises(UserError, match="already contains an export"):
        export_zoo(tmp_path / "exported")
    with pytest.raises(UserError, match="must be OWNER for the zoo, but got 'a/b'"):
        export_zoo(tmp_path / "again", owner="a/b")


@pytest.mark.parametrize("name", zoo.list_zoo())
def test_every_model_of_the_package_is_described_and_whole(name: str) -> None:
    folder, card = zoo.zoo_folder(name), zoo.read_zoo_card(name)
    assert hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest() == card.weights_sha256
    assert card.accuracy["worst_case"] <= min(card.accuracy.values())
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")
    logits = bt.load_model(name)(torch.full((2, 3, 32, 32), 0.5))
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()
    assert json.loads((folder / "buttress.json").read_text())["model"] == card.model


@pytest.mark.parametrize("name", zoo.list_zoo())
def test_every_model_has_the_accuracy_of_its_card(name: str) -> None:
    data = bt.load_dataset("cifar10_sample")
    evaluation = bt.evaluate(bt.load_model(name), data, suite="clean")
    assert evaluation.accuracy["clean"] == zoo.read_zoo_card(name).sample_accuracy["clean"]


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.list_zoo())
def test_every_model_has_the_robust_accuracy_of_its_card(name: str) -> None:
    evaluation = bt.evaluate(bt.load_model(name), bt.load_dataset("cifar10_sample"), suite="fast")
    card = zoo.read_zoo_card(name).sample_accuracy
    assert evaluation.worst_case == pytest.approx(card["worst_case"])
    assert {k: v for k, v in card.items() if k != "worst_case"} == evaluation.accuracy


def test_the_zoo_is_small() -> None:
    assert sum(f.stat().st_size for f in zoo.ZOO.rglob("*") if f.is_file()) < MAX_BYTES


@pytest.mark.reference
@pytest.mark.parametrize("name", zoo.list_zoo())
def test_accuracies_are_those_of_the_card(name: str, cifar10: object) -> None:
    card = zoo.read_zoo_card(name)
    data = bt.load_dataset("cifar10", "test", limit=card.images)
    result = bt.evaluate(bt.load_model(name), data, suite="fast")
    assert {**result.accuracy, "worst_case": result.worst_case} == card.accuracy
