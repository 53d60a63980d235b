"""Every way to name a model: what each reads, gives and refuses."""

from __future__ import annotations

import json
import sys
import types
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import buttress as bt
from buttress.errors import UserError
from buttress.models import SOURCES, Classifier, create_model, load_model
from buttress.models.loading.core import find_source
from conftest import small_net

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
CARD = {"model": "resnet_tiny", "num_classes": 4, "image_size": 32, "in_channels": 3,
        "mean": MEAN, "std": STD, "model_args": {}, "classes": list("abcd"),
        "version": "0.1.0"}  # fmt: skip


def trained(name: str = "resnet_tiny", **more: Any) -> Classifier:
    return create_model(name, num_classes=4, mean=MEAN, std=STD, seed=5, **more).eval()


def same(a: nn.Module, b: nn.Module) -> bool:
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.equal(a(x), b(x))


def exported(folder: Path, card: dict[str, Any] | None = None) -> Classifier:
    """A folder as `buttress export` writes it."""
    model = trained()
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "buttress.json").write_text(json.dumps(card or CARD))
    return model


def sharded(folder: Path, state: dict[str, Tensor], file: str = "part") -> Path:
    folder.mkdir(exist_ok=True)
    names = list(state)
    parts = {f"{file}-{k}.safetensors": names[k::2] for k in range(2)}
    for name, inside in parts.items():
        save_file({n: state[n] for n in inside}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, ns in parts.items() for n in ns}}))
    return index


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A name of each source."""
    monkeypatch.chdir(tmp_path)
    exported(tmp_path / "exported")
    (tmp_path / "run").mkdir()
    for file in ("run/run.json", "weights.pt", "net.onnx", "net.py"):
        (tmp_path / file).touch()
    return {
        "checkpoint": "weights.pt", "folder": "exported", "function": "net.py:build",
        "hf": "hf:owner/name", "name": "resnet_tiny", "onnx": "net.onnx",
        "robustbench": "robustbench:cifar10/Linf/Standard", "run": "run",
        "timm": "timm:resnet18", "zoo": "zoo:resnet_mini",
    }  # fmt: skip


@pytest.mark.parametrize("name", SOURCES.names())
def test_exactly_one_source_reads_a_name(name: str, examples: dict[str, str]) -> None:
    readers = [entry.name for entry in SOURCES if entry.value().matches(examples[name])]
    assert readers == [name]
    assert type(find_source(examples[name])) is SOURCES.get(name)
    entry = SOURCES.entry(name)
    assert entry.summary
    assert entry.metadata["form"]


@pytest.mark.parametrize("name", SOURCES.names())
def test_names_that_are_no_architecture_are_not_built(name: str, examples: dict[str, str]) -> None:
    if not SOURCES.get(name).is_architecture:
        with pytest.raises(UserError):
            create_model(examples[name])


def test_a_file_named_like_a_model_is_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = trained()
    torch.save(model.state_dict(), "resnet_tiny")
    assert same(load_model("resnet_tiny", model="resnet_tiny", num_classes=4), model)
    assert isinstance(create_model("resnet_tiny"), Classifier)  # a name only


class TestOwnNetwork:
    def test_is_wrapped_with_its_classes_and_normalisation(self) -> None:
        net = small_net(classes=7)
        model = load_model(net, image_size=8, mean=0.5, std=0.25)
        x = torch.rand(2, 3, 8, 8)
        assert model.num_classes == 7
        torch.testing.assert_close(model(x), net((x - 0.5) / 0.25))
        assert not load_model(small_net().train(), image_size=8).training

    def test_a_classifier_is_left_as_it_is(self) -> None:
        model = trained()
        assert load_model(model) is model

    def test_double_precision_and_mistakes(self) -> None:
        model = load_model(small_net().double(), image_size=8)
        assert model(torch.rand(1, 3, 8, 8, dtype=torch.float64)).dtype == torch.float64
        with pytest.raises(UserError, match="set image_size"):
            load_model(small_net(), image_size=3)
        with pytest.raises(UserError, match="returns 10 classes, but got num_classes=3"):
            load_model(small_net(), image_size=8, num_classes=3)
        with pytest.raises(UserError, match="must return logits"):
            load_model(nn.Identity())


class TestExportedFolder:
    def test_loads_by_its_path_alone(self, tmp_path: Path) -> None:
        model = exported(tmp_path / "out")
        found = load_model(tmp_path / "out")
        assert same(found, model)
        assert (found.num_classes, found.image_size, found.in_channels) == (4, 32, 3)

    def test_with_arguments_of_the_model(self, tmp_path: Path) -> None:
        model = trained(options={"activation": "silu"})
        exported(tmp_path / "out", {**CARD, "model_args": {"activation": "silu"}})
        save_file(model.state_dict(), tmp_path / "out" / "model.safetensors")
        assert same(load_model(tmp_path / "out"), model)

    def test_without_statistics_in_the_weights_the_card_has_them(self, tmp_path: Path) -> None:
        model = exported(tmp_path / "out")
        save_file(model.net.state_dict(), tmp_path / "out" / "model.safetensors")
        assert same(load_model(tmp_path / "out"), model)

    def test_sharded(self, tmp_path: Path) -> None:
        model = exported(tmp_path / "out")
        (tmp_path / "out" / "model.safetensors").unlink()
        sharded(tmp_path / "out", model.state_dict())
        assert same(load_model(tmp_path / "out"), model)

    def test_code_is_run_only_where_the_user_names_it(self, tmp_path: Path) -> None:
        """The card comes with the weights: what it names is nobody's wish."""
        own = tmp_path / "own.py"
        own.write_text(
            "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
            "from torch import nn\n"
            "def build(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))\n"
        )
        net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))
        exported(tmp_path / "out", {**CARD, "model": f"{own}:build"})
        save_file(net.state_dict(), tmp_path / "out" / "model.safetensors")
        with pytest.raises(UserError, match="only run when you name it yourself"):
            load_model(tmp_path / "out")
        assert not (tmp_path / "ran").exists()
        load_model(tmp_path / "out", model=f"{own}:build")
        assert (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"num_classes": 0}, "num_classes"),
            ({"num_classes": "many"}, "num_classes"),
            ({"model": None}, "model"),
            ({"mean": "red"}, "mean"),
            ({"model_args": [1]}, "model_args"),
            ({"model": "no_such_model"}, "unknown model"),
            ({"num_classes": 5}, "pass num_classes=4"),
        ],
    )
    def test_a_wrong_card_is_named(self, tmp_path: Path, change: dict[str, Any], says: str) -> None:
        exported(tmp_path / "out", {**CARD, **change})
        with pytest.raises(UserError, match=says):
            load_model(tmp_path / "out")

    @pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\udcff"])
    def test_a_damaged_card_is_named(self, tmp_path: Path, text: str) -> None:
        exported(tmp_path / "out")
        card = tmp_path / "out" / "buttress.json"
        card.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(UserError, match=r"buttress\.json"):
            load_model(tmp_path / "out")

    def test_what_is_said_must_agree(self, tmp_path: Path) -> None:
        model = exported(tmp_path / "out")
        assert same(load_model(tmp_path / "out", num_classes=4, model="resnet_tiny"), model)
        with pytest.raises(UserError, match="num_classes=4, but got num_classes=10"):
            load_model(tmp_path / "out", num_classes=10)
        with pytest.raises(UserError, match="already defines model 'resnet_tiny'"):
            load_model(tmp_path / "out", model="vit_tiny")
        (tmp_path / "out" / "model.safetensors").unlink()
        with pytest.raises(UserError, match=r"none of model\.safetensors"):
            load_model(tmp_path / "out")

    def test_weights_only_need_a_model(self, tmp_path: Path) -> None:
        model = exported(tmp_path / "out")
        (tmp_path / "out" / "buttress.json").unlink()
        with pytest.raises(UserError, match="name their architecture"):
            load_model(tmp_path / "out")
        assert same(load_model(tmp_path / "out", model="resnet_tiny", num_classes=4), model)


class TestShards:
    def test_an_index_is_a_checkpoint(self, tmp_path: Path) -> None:
        model = trained()
        index = sharded(tmp_path, model.state_dict())
        assert same(load_model(index, model="resnet_tiny", num_classes=4), model)

    @pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/passwd", "..", ""])
    def test_a_file_elsewhere_is_refused(self, tmp_path: Path, file: str) -> None:
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"w": file}}))
        with pytest.raises(UserError, match="not a file in the same folder"):
            load_model(index, model="resnet_tiny")

    @pytest.mark.parametrize("text", ["{}", "[]", "x", '{"weight_map": 3}'])
    def test_a_damaged_index_is_named(self, tmp_path: Path, text: str) -> None:
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(text)
        with pytest.raises(UserError, match="weight_map"):
            load_model(index, model="resnet_tiny")

    def test_missing_files_and_tensors_are_named(self, tmp_path: Path) -> None:
        index = sharded(tmp_path, trained().state_dict())
        places = json.loads(index.read_text())["weight_map"]
        index.write_text(json.dumps({"weight_map": {**places, "ghost": "part-0.safetensors"}}))
        with pytest.raises(UserError, match="lists ghost"):
            load_model(index, model="resnet_tiny")
        (tmp_path / "part-1.safetensors").unlink()
        with pytest.raises(UserError, match="refers to part-1"):
            load_model(index, model="resnet_tiny")


class TestHub:
    @pytest.fixture
    def hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
        """A hub whose repositories are the folders of ``tmp_path``."""
        asked: list[tuple[str, Any, Any]] = []

        def snapshot_download(name: str, *, revision: Any, allow_patterns: list[str]) -> str:
            asked.append((name, revision, allow_patterns))
            place = tmp_path / name.replace("/", "-")
            if not place.is_dir():
                raise ConnectionError("no route to the hub")
            return str(place)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        return asked

    def test_an_exported_model(self, tmp_path: Path, hub: list[Any]) -> None:
        model = exported(tmp_path / "me-net")
        assert same(load_model("hf:me/net@v2"), model)
        (name, revision, patterns), *rest = hub
        assert (name, revision) == ("me/net", "v2")
        assert not any(p.endswith((".bin", ".py")) for p in patterns)
        assert not rest  # there were safetensors, so no pickle is asked for

    @pytest.mark.parametrize("prefix", ["hf:", "hf-hub:", "hf_hub:"])
    def test_a_model_of_timm(self, tmp_path: Path, hub: list[Any], prefix: str) -> None:
        net = timm.create_model("test_resnet", num_classes=4).eval()
        facts = {"input_size": [3, 32, 32], "mean": MEAN, "std": STD}
        config = {"architecture": "test_resnet", "num_classes": 4, "pretrained_cfg": facts}
        (tmp_path / "timm-small").mkdir()
        (tmp_path / "timm-small" / "config.json").write_text(json.dumps(config))
        save_file(net.state_dict(), tmp_path / "timm-small" / "model.safetensors")
        model = load_model(f"{prefix}timm/small")
        assert (model.num_classes, model.image_size) == (4, 32)
        torch.testing.assert_close(model.normalize.mean.flatten(), torch.tensor(MEAN))
        x = torch.rand(2, 3, 32, 32)
        torch.testing.assert_close(model.net(x), net(x))

    def test_a_pickle_is_the_last_resort(self, tmp_path: Path, hub: list[Any]) -> None:
        model = exported(tmp_path / "me-old")
        (tmp_path / "me-old" / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "me-old" / "pytorch_model.bin")
        assert same(load_model("hf:me/old"), model)
        assert len(hub) == 2

    def test_offline_says_what_to_do(self, hub: list[Any]) -> None:
        with pytest.raises(UserError, match=r"no route.*hf download me/gone --local-dir"):
            load_model("hf:me/gone")

    @pytest.mark.parametrize("name", ["hf:", "hf:me", "hf:me/../x/y", "hf:me/a b", "hf:/x"])
    def test_a_wrong_name_is_not_asked_for(self, hub: list[Any], name: str) -> None:
        with pytest.raises(UserError, match="written hf:OWNER/NAME"):
            load_model(name)
        assert not hub

    def test_other_models_need_a_name(self, tmp_path: Path, hub: list[Any]) -> None:
        model = exported(tmp_path / "me-bare")
        (tmp_path / "me-bare" / "buttress.json").unlink()
        (tmp_path / "me-bare" / "config.json").write_text('{"model_type": "vit"}')
        with pytest.raises(UserError, match="name their architecture"):
            load_model("hf:me/bare")
        assert same(load_model("hf:me/bare", model="resnet_tiny", num_classes=4), model)


class TestRobustBench:
    @pytest.fixture
    def zoo(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
        """A stand-in for the package, with its two modules and one board."""
        asked: list[dict[str, str]] = []

        def load(**names: str) -> nn.Module:
            asked.append(names)
            if names["model_name"] == "Broken":
                raise RuntimeError("the download failed")
            return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))

        utils, models = (types.ModuleType(f"robustbench.{n}") for n in ("utils", "model_zoo"))
        utils.load_model = load  # type: ignore[attr-defined]
        Board = Enum("Board", {"a": "cifar10"})
        Kind = Enum("Kind", {"a": "Linf"})
        models.model_dicts = {Board.a: {Kind.a: {"Carmon2019": {}, "Broken": {}}}}  # type: ignore[attr-defined]
        for module in (types.ModuleType("robustbench"), utils, models):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return asked

    def test_a_model_of_the_zoo(self, zoo: list[dict[str, str]]) -> None:
        model = load_model("robustbench:cifar10/Linf/Carmon2019")
        (asked,) = zoo
        assert Path(asked.pop("model_dir")).is_absolute()  # its default is the current folder
        assert asked == {"model_name": "Carmon2019", "dataset": "cifar10", "threat_model": "Linf"}
        assert model.num_classes == 10
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("cifar10/Linf/Carmon2020", "did you mean Carmon2019"),
            ("cifar10/Linf/Broken", "the download failed"),
            ("cifar10/Carmon2019", "is written robustbench:DATA/THREAT/NAME"),
        ],
    )
    def test_mistakes(self, zoo: list[dict[str, str]], name: str, says: str) -> None:
        with pytest.raises(UserError, match=says):
            load_model(f"robustbench:{name}")

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "robustbench.utils", None)
        with pytest.raises(UserError, match=r"buttress\[robustbench\].*--no-deps"):
            load_model("robustbench:cifar10/Linf/Carmon2019")

    def test_it_cannot_be_trained_on(self, zoo: list[dict[str, str]], tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be fine-tuned"):
            bt.finetune("robustbench:cifar10/Linf/Carmon2019", "digits", "mini-at", tmp_path / "r")


class TestTimm:
    @pytest.fixture
    def published(self, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
        """The weights that timm would download."""
        net = timm.create_model("test_resnet", num_classes=6).eval()
        net.pretrained_cfg = {"input_size": (3, 32, 32), "mean": MEAN, "std": STD}
        create = timm.create_model

        def create_model(name: str, pretrained: bool = False, **args: Any) -> nn.Module:
            if pretrained and name == "test_vit":
                raise OSError("no route to the hub")
            return net if pretrained else create(name, **args)

        monkeypatch.setattr("timm.create_model", create_model)
        return net

    def test_published_weights_by_an_explicit_option(self, published: nn.Module) -> None:
        model = load_model("timm:test_resnet", pretrained=True)
        assert (model.num_classes, model.image_size) == (6, 32)
        assert not model.warnings
        x = torch.rand(2, 3, 32, 32)
        torch.testing.assert_close(model.net(x), published(x))
        torch.testing.assert_close(model.normalize.std.flatten(), torch.tensor(STD))
        assert "is not trained" in load_model("timm:test_resnet").warnings[0]

    def test_mistakes(self, published: nn.Module) -> None:
        with pytest.raises(UserError, match=r"trained on 6 classes.*finetune"):
            load_model("timm:test_resnet", pretrained=True, num_classes=10)
        with pytest.raises(UserError, match=r"no route.*pass the file"):
            load_model("timm:test_vit", pretrained=True)
        with pytest.raises(UserError, match="applies only to timm:NAME"):
            load_model("resnet_tiny", pretrained=True)


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(UserError, match=r"nor a registered model; did you mean .*resnet_50"):
        load_model("resnet_51")
