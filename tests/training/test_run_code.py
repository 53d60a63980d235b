"""A run keeps the code of a user's model: it can be moved, and foreign code is never executed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import buttress as bt
from buttress.cli.main import run_cli
from buttress.errors import UserError
from buttress.results import model_code
from buttress.results.model_code import read_model_code, short_model_name
from buttress.results.run import Run
from buttress.system.files import cache_dir

NET = """
from torch import nn

from layers import width


def net(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, width()), nn.Linear(width(), num_classes))
"""
LAYERS = "def width():\n    return {}\n"
SMALL: dict[str, Any] = {
    "limit": 16,
    "overrides": ("epochs=1", "validation.limit=8"),
    "device": "cpu",
}


def write_code(folder: Path, width: int = 4) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text(NET, encoding="utf-8")
    (folder / "layers.py").write_text(LAYERS.format(width), encoding="utf-8")
    return f"{folder}/net.py:net"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained, moved and left without the files it was made from."""
    place = tmp_path_factory.mktemp("code")
    run = bt.train(write_code(place / "mine"), "digits", "quickstart-at", place / "run", **SMALL)
    shutil.rmtree(place / "mine")
    return Path(shutil.move(run.path, place / "moved"))


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "elsewhere" / "run"))


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who has run no code before."""
    monkeypatch.setattr(model_code, "_trusted_here", set())
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))


def test_every_command_takes_a_moved_run(run: Path) -> None:
    assert json.loads((run / "run.json").read_text())["spec"]["model"] == "model/net.py:net"
    for args in (
        ["evaluate", str(run), "--suite", "clean,noise-linf", "--limit", "8"],
        ["finetune", str(run), "--data", "digits", "--limit", "16", "--set", "epochs=1", "--set",
         "validation.limit=8", "--out", "tuned"],
        ["analyze", "sparsity", str(run)],
        ["export", str(run), "--to", "exported"],
        ["report", str(run), "tuned", "--out", "pages"],
    ):  # fmt: skip
        assert run_cli(args) == 0, args
    assert (Path("tuned") / "model" / "layers.py").is_file(), "the new run has its own copy"
    model = bt.load_model("exported", model="exported/net.py:net")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), bt.load_model(run)(x))
    page = next(Path("pages/models").glob(f"*{Run(run).header['key']}*")).read_text()
    assert "def net(num_classes=10)" in page
    assert "model/layers.py" in page
    assert str(run) not in page
    index = Path("pages/index.html").read_text()
    assert "net (run)" in index
    assert "net (tuned)" in index
    assert "net.py" not in index


def test_the_same_command_resumes_and_other_code_is_another_run(run: Path, tmp_path: Path) -> None:
    key = Run(run).spec.key()
    for name, width in (("again", 4), ("changed", 5)):
        model = write_code(tmp_path / name, width)
        if width == 4:
            assert bt.train(model, "digits", "quickstart-at", run, **SMALL).spec.key() == key
        else:
            with pytest.raises(UserError, match=r"other settings.*model_sha256"):
                bt.train(model, "digits", "quickstart-at", run, **SMALL)


def test_two_versions_of_a_module_in_one_process(run: Path, tmp_path: Path) -> None:
    def width(model: torch.nn.Module) -> int:
        return len(model.state_dict()["net.1.bias"])

    assert width(bt.load_model(run)) == 4
    assert width(bt.create_model(write_code(tmp_path / "wide", 7))) == 7
    assert width(bt.load_model(run)) == 4
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.usefixtures("stranger")
def test_code_of_a_foreign_run_is_executed_only_after_it_was_allowed(run: Path) -> None:
    (run / "model" / "layers.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    forge(run)
    for call in (bt.load_model, lambda p: bt.export_run(p, "out"),
                 lambda p: bt.finetune(p, "digits", None, "tuned", **SMALL)):  # fmt: skip
        with pytest.raises(UserError, match=r"never executed by itself.*buttress trust"):
            call(run)
    assert run_cli(["report", str(run), "--out", "pages"]) == 0
    assert not Path("ran").exists()
    assert run_cli(["trust", str(run)]) == 0
    assert list((cache_dir() / "trusted-code").iterdir())
    with pytest.raises(UserError, match="width"):
        bt.load_model(run)
    assert Path("ran").exists()


def forge(run: Path) -> None:
    """Write the hash of the present files into run.json, as whoever hands over a run can."""
    from buttress.results.core import read_record_json, write_record_json

    header = read_record_json(run / "run.json")
    sha256 = read_model_code(f"{run}/model/net.py:net").sha256
    header["spec"]["model_sha256"] = sha256
    write_record_json(run / "run.json", header)


def test_a_changed_copy_is_refused(run: Path) -> None:
    (run / "model" / "yaml.py").write_text("")  # would be imported in place of the package
    with pytest.raises(UserError, match="was changed after training"):
        bt.load_model(run)
    (run / "model" / "yaml.py").unlink()
    bt.load_model(run)
    (run / "model" / "layers.py").write_text(LAYERS.format(9))
    with pytest.raises(UserError, match="was changed after training"):
        bt.load_model(run)


@pytest.mark.usefixtures("stranger")
def test_a_run_that_names_a_file_elsewhere_needs_permission_too(run: Path, tmp_path: Path) -> None:
    from buttress.results.core import read_record_json, write_record_json

    header = read_record_json(run / "run.json")
    model = write_code(tmp_path / "theirs")
    header["spec"] |= {"model": model, "model_sha256": None}  # as earlier versions wrote it
    write_record_json(run / "run.json", header)
    with pytest.raises(UserError, match="never executed by itself"):
        bt.load_model(run)
    bt.create_model(model)  # named by the user: from now on it is the user's code
    bt.load_model(run)
    header["spec"] |= {"model": str(tmp_path / "theirs" / "net.py:net"), "model_sha256": "0" * 64}
    write_record_json(run / "run.json", header)
    with pytest.raises(UserError, match="must be in"):
        bt.load_model(run)


def test_names_for_charts() -> None:
    assert short_model_name("examples/mynet.py:mynet") == "mynet"
    assert short_model_name("/a/net.py:build") == "net.build"
    assert short_model_name("timm:resnet18") == "timm:resnet18"
    assert "layers" not in sys.modules or Path(sys.modules["layers"].__file__ or "").exists()
