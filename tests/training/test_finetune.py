"""Runs that begin with the weights of another: what they keep, when they are the same run."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from buttress.analysis.subject import load_subject
from buttress.cli.main import run_cli
from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.models import create_model, load_model, transfer_weights
from buttress.models.loading.checkpoint import content_digest, load_checkpoint, save_checkpoint
from buttress.models.loading.transfer import describe_changes
from buttress.results.run import Run
from buttress.system.progress import SilentProgress
from buttress.training import finetune, train

RECIPE = """
epochs: {epochs}
batch_size: 32
objective: {objective}
threat: Linf:0.03
optimizer: {{name: adamw, lr: 0.002}}
augmentation: {{crop_padding: 2}}
validation: {{attack: {{name: pgd, args: {{steps: 1}}}}, limit: 16}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits, a folder of three digits at 32 and at 64 pixels, and recipes."""
    place = tmp_path_factory.mktemp("finetune")
    (place / "first.yaml").write_text(RECIPE.format(epochs=4, objective="standard"))
    (place / "clean.yaml").write_text(RECIPE.format(epochs=2, objective="standard"))
    attacked = "{name: pgd_at, args: {steps: 1}}"
    (place / "attacked.yaml").write_text(RECIPE.format(epochs=1, objective=attacked))
    train("vit_tiny", "digits", place / "first.yaml", place / "source", device="cpu")
    data = load_dataset("digits", "train", limit=400)
    for size in (32, 64):
        for k in range(3):
            folder = place / f"images-{size}" / "train" / f"digit {k}"
            folder.mkdir(parents=True)
            for i, image in enumerate(data.images[data.labels == k]):
                pixels = (image.permute(1, 2, 0) * 255).round().byte().numpy()
                Image.fromarray(pixels).resize((size, size)).save(folder / f"{i}.png")
    return place


class Logged(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def go(place: Path, out: str, recipe: str = "clean", size: int = 32, **more: Any) -> Run:
    arguments = {"source": place / "source", "device": "cpu", **more}
    data = f"folder:{place}/images-{size}"
    return finetune(dataset=data, recipe=place / f"{recipe}.yaml", out=place / out, **arguments)


def weights(run: Run) -> str:
    return content_digest([load_checkpoint(run.checkpoint(w))["model"] for w in ("best", "last")])


@pytest.fixture(scope="module")
def whole(place: Path) -> Run:
    return go(place, "whole")


def test_it_starts_better_than_fresh_weights(place: Path, whole: Run) -> None:
    fresh = train("vit_tiny", f"folder:{place}/images-32", place / "clean.yaml", place / "fresh",
                  device="cpu")  # fmt: skip
    assert whole.history[0]["loss"] < 0.7 * fresh.history[0]["loss"]
    assert load_model(whole.path).num_classes == 3
    assert whole.spec.model_copy(update={"initial_weights": None}) == fresh.spec
    assert whole.spec.key() != fresh.spec.key()


def test_it_begins_with_the_source_and_a_new_head(place: Path, whole: Run) -> None:
    source = load_checkpoint(place / "source" / "best.pt")["model"]
    start = load_checkpoint(whole.checkpoint("initial"))["model"]
    for name, value in start.items():
        if name.startswith("net.") and not name.startswith("net.head."):
            assert torch.equal(value, source[name]), name
    mean = start["normalize.mean"].flatten().tolist()
    assert mean == pytest.approx(whole.spec.mean)
    assert mean != source["normalize.mean"].flatten().tolist()


def test_the_header_says_where_it_came_from(place: Path, whole: Run) -> None:
    origin = whole.header["finetuned_from"]
    source = load_checkpoint(place / "source" / "best.pt")["model"]
    assert origin["source"] == "source"
    assert origin["digest"] == content_digest(source)
    assert origin["key"] == Run(place / "source").spec.key()
    assert origin["initialized"] == ["head.weight", "head.bias"]
    assert origin["resized"] == origin["unused"] == []
    assert origin["loaded"] == len(source) - 2 - 2  # without head and normalisation
    assert "finetuned_from" not in json.dumps(whole.spec.identity())


def test_attacked_at_another_size(place: Path) -> None:
    progress = Logged()
    run = go(place, "larger", "attacked", size=64, progress=progress)
    assert run.header["finetuned_from"]["resized"] == ["pos_embed"]
    assert run.summary["best_val_robust"] is not None
    assert any(
        "1 resized (pos_embed), 2 initialized (head.weight, head.bias)" in s for s in progress.lines
    )


def test_image_size_is_that_of_training_and_evaluation(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Logged()
    run = go(place, "resized", "clean", image_size=64, progress=progress, overrides=("epochs=1",))
    text = "\n".join(progress.lines)
    assert "images have 64x64 pixels instead of 32x32" in text
    assert "classifier is new, for 3 classes instead of 10" in text
    assert "positions pos_embed have 8x8 tokens instead of 4x4 tokens: resized bicubically" in text
    assert (run.spec.image_size, load_model(run.path).image_size) == (64, 64)
    assert load_subject(run).data.shape == (3, 64, 64)
    args = ["evaluate", str(run.path), "--suite", "clean,fgsm-linf", "--limit", "4", "--json"]
    assert run_cli(args) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 4
    at_32 = go(place, "not resized", "clean", overrides=("epochs=1",))
    assert run.spec.key() != at_32.spec.key()


def test_patches_and_strides_are_described() -> None:
    def lines(name: str, old: dict[str, int], new: dict[str, int]) -> str:
        before, after = (create_model(name, options=options, seed=0) for options in (old, new))
        report = transfer_weights(after, before.state_dict())
        return "\n".join(describe_changes(before, after, report))

    vit = lines("timm:vit_tiny_patch16_224", {"patch_size": 8}, {"patch_size": 4})
    assert "patches of 4x4 instead of 8x8 in patch_embed.proj" in vit
    xcit = lines("xcit_tiny", {"patch": 4}, {"patch": 2})
    assert "stride of 1x1 instead of 2x2 in " in xcit
    assert lines("vit_tiny", {}, {}) == ""


class Stop(Exception):
    """Stands for a kill: nothing after it runs in the training code."""


@pytest.mark.parametrize("after", range(1, 6))
def test_stopped_after_any_file_it_resumes_bit_for_bit(
    place: Path, whole: Run, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.fsync, 0

    def counting(handle: int) -> None:
        nonlocal written
        real(handle)
        written += stat.S_ISREG(os.fstat(handle).st_mode)
        if written == after:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counting)
        with pytest.raises(Stop):
            go(place, f"cut-{after}")
    run = go(place, f"cut-{after}")
    assert weights(run) == weights(whole)
    assert run.header["finetuned_from"] == whole.header["finetuned_from"]
    assert run.state == "done"


def test_a_finished_run_returns_at_once(place: Path, whole: Run) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir()}
    go(place, "whole")
    assert {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir()} == before


def test_a_damaged_start_is_written_again(place: Path, whole: Run) -> None:
    shutil.copytree(whole.path, place / "damaged")
    for name in ("initial.pt", "last.pt", "best.pt"):
        (place / "damaged" / name).write_bytes(b"damaged")
    progress = Logged()
    assert weights(go(place, "damaged", progress=progress)) == weights(whole)
    assert any("initial.pt" in line and "again" in line for line in progress.lines)


def test_weights_make_the_run_not_their_place(place: Path, whole: Run) -> None:
    shutil.copytree(place / "source", place / "elsewhere")
    torch.save(load_model(place / "source").state_dict(), place / "weights.pth")
    before = (whole.path / "last.pt").stat().st_mtime_ns
    sources: list[tuple[str, dict[str, Any]]]
    sources = [("elsewhere", {}), ("weights.pth", {"model": "vit_tiny"})]
    for source, more in sources:
        assert go(place, "whole", source=place / source, **more).spec == whole.spec
    assert (whole.path / "last.pt").stat().st_mtime_ns == before
    train("vit_tiny", "digits", place / "clean.yaml", place / "other", device="cpu", limit=64)
    with pytest.raises(UserError, match=r"other settings \(initial_weights\)"):
        go(place, "whole", source=place / "other")


def test_the_last_epoch_and_the_recipe_of_a_run(place: Path) -> None:
    source = Run(shutil.copytree(place / "source", place / "two-epochs"))
    state = load_checkpoint(source.checkpoint("last"))
    state["model"]["net.cls_token"] += 1
    save_checkpoint(source.checkpoint("last"), state)
    run = finetune(
        source.path, f"folder:{place}/images-32", None, place / "own", checkpoint="last",
        overrides=("epochs=1",), device="cpu", limit=32,
    )  # fmt: skip
    assert run.spec.recipe == source.spec.recipe.model_copy(update={"epochs": 1})
    start = load_checkpoint(run.checkpoint("initial"))["model"]
    assert torch.equal(start["net.cls_token"], state["model"]["net.cls_token"])
    assert run.header["finetuned_from"]["digest"] == content_digest(state["model"])


def test_model_arguments_stand_beside_those_of_the_run(place: Path) -> None:
    args = {"patch": 16, "activation": "silu"}
    source = place / "xcit"
    quick: dict[str, Any] = {"device": "cpu", "limit": 32}
    train("xcit_tiny", "digits", place / "attacked.yaml", source, model_args=args, **quick)
    run = go(place, "xcit-4", "attacked", source=source, model_args={"patch": 4}, limit=32)
    assert run.spec.model_args == {"patch": 4, "activation": "silu"}
    assert run.header["finetuned_from"]["initialized"] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "nowhere"}, "nowhere' is neither a file, a run nor a registered model"),
        ({"source": "images-32"}, "neither a run"),
        ({"source": "source/best.pt"}, "name their architecture"),
        (
            {"source": "source", "model": "vit_tiny"},
            "already defines model 'vit_tiny'; omit --model",
        ),
        ({"source": "source/best.pt", "model": "resnet_tiny"}, "do not match model 'resnet_tiny'"),
        ({"source": "source/best.pt", "model": "vit_tiny", "recipe": None}, "pass --recipe"),
        ({"source": "source", "checkpoint": "worst"}, "best, last, but got 'worst'"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    place: Path, arguments: dict[str, str | None], message: str
) -> None:
    recipe, out = place / "clean.yaml", place / "never"
    call: dict[str, Any] = {
        "dataset": f"folder:{place}/images-32",
        "recipe": recipe,
        "out": out,
        **arguments,
    }
    call["source"] = place / str(arguments["source"])
    with pytest.raises(UserError, match=message):
        finetune(**call)
    assert not out.exists()
