"""Trained weights from files of many shapes, and the files that are refused."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from buttress.errors import CorruptFileError, UserError
from buttress.models import Classifier, create_model, load_model
from buttress.models.loading.checkpoint import save_checkpoint
from buttress.results.run import Run
from buttress.results.run_spec import Recipe

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
State = dict[str, Tensor]


@pytest.fixture
def trained() -> Classifier:
    model = create_model("resnet_tiny", mean=MEAN, std=STD, seed=5)
    model(torch.rand(8, 3, 32, 32))  # moves the statistics of the norms
    return model.eval()


def prefixed(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + name: value for name, value in state.items()}


def nested(*keys: str) -> Callable[[State], dict[str, Any]]:
    def wrap(state: State) -> dict[str, Any]:
        content: dict[str, Any] = state
        for key in keys:
            content = {"epoch": 3, key: content, "note": "made elsewhere"}
        return content

    return wrap


def same(a: nn.Module, b: nn.Module) -> bool:
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.equal(a(x), b(x))


@pytest.mark.parametrize(
    "shape",
    [
        dict,
        nested("state_dict"),
        nested("model"),
        nested("model_state_dict"),
        nested("net"),
        nested("ema"),
        nested("state_dict", "model"),
        prefixed("module."),
        prefixed("model."),
        prefixed("_orig_mod."),
        prefixed("module._orig_mod."),
        lambda state: nested("state_dict")(prefixed("model.net.")(state)),
        nested("state_dict_ema"),
        nested("model_ema", "state_dict"),
        nested("my_own_word"),
        lambda state: [state, {"lr": 0.1}],
        lambda state: {"state_dict": [{"model": state}], "epoch": 3},
        prefixed("backbone."),
        prefixed("1."),
        prefixed("_orig_mod.module.model.backbone."),
        prefixed("a_wrapper_nobody_knows.model."),
        lambda state: {**prefixed("module.")(state), "n_averaged": torch.tensor(7)},
        lambda state: {
            **prefixed("module.model.")(state),
            **prefixed("module.attacker.model.")(state),
        },
        lambda state: {
            ("fc." if "head" in n else "module.backbone.") * ("head" not in n) + n: v
            for n, v in state.items()
        },
    ],
)
@pytest.mark.parametrize("has_normalisation", [True, False])
def test_weights_in_any_wrapping(
    trained: Classifier, tmp_path: Path, shape: Callable[[State], Any], has_normalisation: bool
) -> None:
    path = tmp_path / "weights.pt"
    state = trained.state_dict() if has_normalisation else trained.net.state_dict()
    torch.save(shape(state), path)
    given: dict[str, Any] = {} if has_normalisation else {"mean": MEAN, "std": STD}

    model = load_model(path, model="resnet_tiny", **given)

    assert same(model, trained)
    assert not model.training


@pytest.mark.parametrize("form", ["safetensors", "legacy"])
def test_other_file_formats(trained: Classifier, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"weights.{form}"
    if form == "safetensors":
        save_file(trained.state_dict(), path)
    else:
        torch.save(trained.state_dict(), path, _use_new_zipfile_serialization=False)
    assert same(load_model(path, model="resnet_tiny"), trained)


NAMES = [
    ("mean", "std"), ("mu", "sigma"), ("normalize.mean", "normalize.std"), ("0.mean", "0.std"),
    ("module.normalizer.new_mean", "module.normalizer.new_std"),
]  # fmt: skip


@pytest.mark.parametrize("names", NAMES, ids=str)
@pytest.mark.parametrize("prefix", ["", "module.model.", "1."])
def test_normalisation_under_any_name(
    trained: Classifier, tmp_path: Path, names: tuple[str, str], prefix: str
) -> None:
    state = prefixed(prefix)(trained.net.state_dict())
    values = {names[0]: torch.tensor(MEAN).view(1, 3, 1, 1), names[1]: torch.tensor(STD)}
    torch.save({**values, **state}, tmp_path / "weights.pt")
    model = load_model(tmp_path / "weights.pt", model="resnet_tiny")
    torch.testing.assert_close(model.normalize.mean.flatten(), torch.tensor(MEAN))
    assert same(model, trained)


def test_two_normalisations_that_differ_are_not_guessed(
    trained: Classifier, tmp_path: Path
) -> None:
    more = {"a.mean": torch.zeros(3), "b.mean": torch.ones(3)}
    torch.save({**trained.net.state_dict(), **more}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match=r"unexpected keys: a\.mean, b\.mean"):
        load_model(tmp_path / "weights.pt", model="resnet_tiny")


def test_two_networks_in_one_file_are_not_guessed(trained: Classifier, tmp_path: Path) -> None:
    state = trained.net.state_dict()
    torch.save({"first": state, "second": state}, tmp_path / "two.pt")
    with pytest.raises(UserError, match="contains no state dict"):
        load_model(tmp_path / "two.pt", model="resnet_tiny")
    other = {f"teacher.{n}": v + 1 for n, v in state.items()}
    torch.save({**prefixed("student.")(state), **other}, tmp_path / "both.pt")
    with pytest.raises(UserError, match="unexpected"):
        load_model(tmp_path / "both.pt", model="resnet_tiny")


@pytest.mark.parametrize("damage", ["nan", "int", "complex"])
def test_weights_that_are_no_finite_numbers_are_refused(
    trained: Classifier, tmp_path: Path, damage: str
) -> None:
    state = trained.net.state_dict()
    name = next(n for n, v in state.items() if v.ndim == 4)
    state[name] = {
        "nan": state[name] * torch.nan, "int": state[name].int(), "complex": state[name] * 1j,
    }[damage]  # fmt: skip
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(UserError, match=rf"{name} .*(NaN|must be torch)"):
        load_model(tmp_path / "weights.pt", model="resnet_tiny")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_types_load(trained: Classifier, tmp_path: Path, dtype: torch.dtype) -> None:
    state = {
        n: v.to(dtype) if v.is_floating_point() else v for n, v in trained.state_dict().items()
    }
    torch.save(state, tmp_path / "weights.pt")
    model = load_model(tmp_path / "weights.pt", model="resnet_tiny")
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_compressed_checkpoint_is_refused(trained: Classifier, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1 << 20)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name))
    with pytest.raises(UserError, match="unpacks to"):
        load_model(tmp_path / "bomb.pt", model="resnet_tiny")


def test_loading_leaves_the_global_generator_alone(trained: Classifier, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    before = torch.random.get_rng_state()
    load_model(tmp_path / "weights.pt", model="resnet_tiny")
    assert torch.equal(before, torch.random.get_rng_state())


def test_normalisation_of_file_and_call_must_agree(trained: Classifier, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    assert same(
        load_model(tmp_path / "weights.pt", model="resnet_tiny", mean=MEAN, std=STD), trained
    )
    with pytest.raises(UserError, match="differ from the given mean and std"):
        load_model(tmp_path / "weights.pt", model="resnet_tiny", mean=0.5, std=0.5)


def test_network_of_the_users_own_with_a_normalisation_inside(tmp_path: Path) -> None:
    """Its layer has the names of ours, and its weights a prefix that must not be taken off."""
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "from buttress.models import Normalize\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.normalize = Normalize(0.3, 0.7)\n"
        "        self.net = nn.Conv2d(3, 10, 32)\n"
        "    def forward(self, x):\n"
        "        return self.net(self.normalize(x)).flatten(1)\n",
        encoding="utf-8",
    )
    name = f"{tmp_path / 'own.py'}:Net"
    trained = create_model(name, mean=0.2, std=0.9, seed=3)
    net: Any = trained.net
    net.normalize.mean.fill_(0.1)
    torch.save(prefixed("module.")(trained.state_dict()), tmp_path / "ours.pt")
    torch.save(prefixed("module.")(trained.net.state_dict()), tmp_path / "bare.pt")
    assert same(load_model(tmp_path / "ours.pt", model=name), trained)
    assert same(load_model(tmp_path / "bare.pt", model=name, mean=0.2, std=0.9), trained)


def test_counters_of_batches_may_be_absent(trained: Classifier, tmp_path: Path) -> None:
    state = {n: v for n, v in trained.state_dict().items() if "num_batches" not in n}
    torch.save(state, tmp_path / "old.pt")
    assert same(load_model(tmp_path / "old.pt", model="resnet_tiny"), trained)


def test_wrong_number_of_classes_names_both_shapes(trained: Classifier, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UserError, match=r"\(10, 48\).*\(100, 48\).*num_classes=10"):
        load_model(tmp_path / "weights.pt", model="resnet_tiny", num_classes=100)


def test_another_architecture_names_keys(trained: Classifier, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(
        UserError, match=r"missing keys: .*stem.* more; unexpected keys: .*conv1.* more"
    ):
        load_model(tmp_path / "weights.pt", model="wrn_tiny")


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("attacked",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_in_a_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_zip: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"state_dict": Malicious()}
    torch.save(content, "bad.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UserError, match=r"running code.*never.*state_dict\(\)"):
        load_model("bad.pt", model="resnet_tiny")
    assert not Path("attacked").exists()


def test_a_whole_pickled_module_is_refused(trained: Classifier, tmp_path: Path) -> None:
    torch.save(trained, tmp_path / "module.pt")
    with pytest.raises(UserError, match=r"refers to buttress\.models\.core\.Classifier"):
        load_model(tmp_path / "module.pt", model="resnet_tiny")


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_a_damaged_file_is_refused(trained: Classifier, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".pt":
        torch.save(trained.state_dict(), path)
    else:
        save_file(trained.state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"is damaged or not a checkpoint"):
        load_model(path, model="resnet_tiny")


@pytest.mark.parametrize(
    ("content", "says"),
    [({"epoch": 3}, "contains no state dict"), ([1], "must contain a state dict")],
)
def test_a_file_without_weights(tmp_path: Path, content: object, says: str) -> None:
    torch.save(content, tmp_path / "empty.pt")
    with pytest.raises(UserError, match=says):
        load_model(tmp_path / "empty.pt", model="resnet_tiny")


def test_plain_pickle_is_refused_or_holds_no_weights(tmp_path: Path) -> None:
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError):
        load_model(tmp_path / "plain.pt", model="resnet_tiny")


@pytest.mark.parametrize("name", ["resnet_tiny", "timm:test_resnet", "wrn_d1-1-1_w1-1-1"])
def test_a_name_gives_an_untrained_model_that_says_so(name: str) -> None:
    model = load_model(name, num_classes=4)
    assert not model.training
    assert model.num_classes == 4
    assert "is not trained" in model.warnings[0]


def test_a_checkpoint_needs_a_model_and_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a file, a run nor a registered model"):
        load_model(tmp_path / "absent.pt", model="resnet_tiny")
    torch.save({}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="model="):
        load_model(tmp_path / "weights.pt")


class Spec:
    """What a run says of its model."""

    model = "resnet_tiny"
    model_args: dict[str, str] = {}  # noqa: RUF012
    model_sha256 = None
    dataset = "digits"
    num_classes, image_size, in_channels = 10, 32, 3
    mean, std = tuple(MEAN), tuple(STD)
    recipe = Recipe(epochs=1, optimizer={"lr": 0.1})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Run, "spec", Spec())
    (tmp_path / "run.json").touch()
    return tmp_path


def test_a_run_knows_its_model(trained: Classifier, run: Path) -> None:
    save_checkpoint(run / "best.pt", {"model": trained.state_dict(), "epoch": 2})
    assert same(load_model(run), trained)
    with pytest.raises(UserError, match="already defines its model; omit model"):
        load_model(run, model="resnet_tiny")


def test_a_run_without_or_with_a_damaged_checkpoint(trained: Classifier, run: Path) -> None:
    with pytest.raises(UserError, match="has no checkpoint"):
        load_model(run)
    save_checkpoint(run / "best.pt", {"model": trained.state_dict()})
    (run / "best.pt").write_bytes((run / "best.pt").read_bytes()[:1000])
    with pytest.raises(CorruptFileError):
        load_model(run)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run\.json"):
        load_model(tmp_path)
