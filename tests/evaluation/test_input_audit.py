"""Mistakes in the images of an evaluation: each is a finding, and none on honest images."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import buttress as bt
from buttress.cli.main import run_cli
from buttress.data import Dataset, load_dataset
from buttress.errors import CorruptFileError, DataError
from buttress.evaluation import list_checks
from buttress.evaluation.doctor.labels import label_permutation
from buttress.evaluation.subsets import ImageShard, merge_shards
from buttress.results.training_images import (
    TRAINING_IMAGES_FILE,
    TrainingImages,
    read_training_images,
    write_training_images,
)
from buttress.statistics import effective_image_fraction, wilson_interval

COLORS = torch.eye(3)  # of the three classes
NAMES = ("blue", "green", "red")
SIZE = 8


class NearestColor(nn.Module):
    """Logits by the mean color; the classes in the order of the colors' names."""

    def forward(self, x: Tensor) -> Tensor:
        return 20 * x.mean((2, 3)).flip(1)


def write_images(folder: Path, count: int, seed: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    color = COLORS[2 - NAMES.index(folder.name)].numpy()
    for number in range(count):
        noise = rng.integers(0, 60, (SIZE, SIZE, 3))
        pixels = (150 * color + noise).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Images of three classes, all of which the model classifies correctly."""
    for split, seed, count in (("train", 0, 8), ("val", 10, 6)):
        for k, name in enumerate(NAMES):
            write_images(tmp_path / "set" / split / name, count, seed + k)
    return tmp_path / "set"


def checks(found: bt.Evaluation) -> dict[str, str]:
    """The findings about images and labels."""
    names = {*list_checks("data"), "permuted_labels"}
    return {f.check: f.severity for f in found.findings if f.check in names}


def evaluated(root: Path, split: str = "test") -> bt.Evaluation:
    return bt.evaluate(NearestColor(), load_dataset(f"folder:{root}", split), ["clean"])


def swap_classes(root: Path) -> None:
    (root / "val" / "red").rename(root / "val" / "old")
    (root / "val" / "blue").rename(root / "val" / "red")
    (root / "val" / "old").rename(root / "val" / "blue")


def copy_training_images(root: Path) -> None:
    shutil.rmtree(root / "val")
    shutil.copytree(root / "train", root / "val")


def repeat_images(root: Path) -> None:
    for path in [*(root / "val").rglob("*.png")]:
        for copy in range(4):
            shutil.copy(path, path.with_name(f"{path.stem}-{copy}.png"))


def empty_class(root: Path) -> None:
    for path in (root / "val" / "green").iterdir():
        path.unlink()


def leave_images_outside(root: Path) -> None:
    shutil.copy(root / "train" / "red" / "0.png", root / "val" / "stray.png")
    (root / "val" / "red" / "photo.heic").write_bytes(b"another format")


MISTAKES: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "swapped": (swap_classes, "permuted_labels", "untrustworthy", "blue as red, red as blue"),
    "copies of train": (copy_training_images, "training_images", "warning", "24 of the 24"),
    "repeated": (repeat_images, "duplicate_images", "warning", "only 18 of the 90 images"),
    "empty class": (empty_class, "empty_classes", "warning", "1 of the 3 classes"),
    "outside": (leave_images_outside, "dropped_files", "warning", "2 files of the dataset"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_images_is_a_finding(mistake: str, root: Path) -> None:
    make, name, severity, text = MISTAKES[mistake]
    assert checks(evaluated(root)) == {}
    make(root)
    found = evaluated(root)
    assert checks(found) == {name: severity}
    finding = next(f for f in found.findings if f.check == name)
    assert text in finding.message
    assert finding.evidence
    assert finding.text in found.warnings
    diagnosis = bt.diagnose(NearestColor(), load_dataset(f"folder:{root}"), limit=18)
    assert name in {f.check for f in diagnosis.findings}
    assert {c.name for c in diagnosis.checks if c.outcome == "flagged"} >= {name}


def test_the_command_line_shows_and_stores_it(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repeat_images(root)
    leave_images_outside(root)
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        return 20 * x.mean((2, 3)).flip(1)\n\n\ndef net(**shape):\n    return Net()\n"
    )
    args = ["evaluate", f"{tmp_path}/model.py:net", "--data", f"folder:{root}", "--suite",
            "clean,pgd:Linf:0.01", "--out", str(tmp_path / "records")]  # fmt: skip
    assert run_cli(args) == 0
    shown = capsys.readouterr().out
    assert "warning: only 18 of the 90 images are distinct" in shown
    assert "warning: 2 files of the dataset were not read" in shown
    assert run_cli([*args, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    stored = {f["check"]: f for f in content["findings"]}
    assert stored["duplicate_images"]["evidence"]["distinct"] == 18
    assert content["images"] == 90
    for attack in ("clean", "pgd:Linf:0.01"):
        assert content["attacks"][attack]["interval"] == list(wilson_interval(18, 18))


def test_an_unreadable_image_is_named(root: Path) -> None:
    (root / "val" / "red" / "0.png").write_bytes(b"")
    (root / "val" / "red" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2 of 18 images cannot be read, first: .*red/[01].png"):
        evaluated(root)


def test_copies_do_not_narrow_the_interval() -> None:
    x, y = torch.rand(20, 3, 8, 8), torch.arange(20) % 3
    once = bt.evaluate(NearestColor(), Dataset.from_arrays(x, y), ["clean"])
    data = Dataset.from_arrays(x.repeat(5, 1, 1, 1), y.repeat(5))
    found = bt.evaluate(NearestColor(), data, ["clean"])
    assert len(found) == 100
    assert found.worst_case == pytest.approx(once.worst_case)
    assert found.interval() == pytest.approx(once.interval())
    for name, result in once.per_class().items():
        estimate = found.per_class()[name].accuracy["clean"]
        assert estimate.interval == pytest.approx(result.accuracy["clean"].interval)
    assert bt.compare([found], [found], attack="clean").images == 20


def test_the_effective_number_of_images() -> None:
    assert effective_image_fraction(np.arange(7)) == 1
    assert effective_image_fraction(np.repeat(np.arange(20), 5)) == pytest.approx(0.2)
    # Copies of one image alone: n^2 / sum m^2 = 16 / (4 + 1 + 1).
    assert 4 * effective_image_fraction(np.array([0, 0, 1, 2])) == pytest.approx(16 / 6)


def test_copies_with_other_labels_are_counted() -> None:
    x, y = torch.rand(20, 3, 8, 8).repeat(2, 1, 1, 1), torch.arange(40) % 3
    found = bt.evaluate(NearestColor(), Dataset.from_arrays(x, y), ["clean"])
    finding = next(f for f in found.findings if f.check == "duplicate_images")
    assert finding.evidence["conflicting_labels"] == 20


def test_copies_in_different_shards_are_found(tmp_path: Path) -> None:
    x, y = torch.rand(6, 3, 8, 8).repeat_interleave(2, 0), torch.arange(6).repeat_interleave(2) % 3
    data = Dataset.from_arrays(x, y)
    for k in (1, 2):  # neighbours, and so the copies, are in different shards
        shard = ImageShard(k, 2)
        part = bt.evaluate(
            NearestColor(), shard.select(data), ["clean"], out=shard.folder(tmp_path)
        )
        assert "duplicate_images" not in checks(part)
    merged = merge_shards(tmp_path, 2, data, NearestColor())
    assert merged is not None
    assert checks(merged)["duplicate_images"] == "warning"
    assert merged.interval() == pytest.approx(wilson_interval(6 * merged.worst_case, 6))


def test_a_model_of_60_percent_with_swapped_classes() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    predictions = np.where(rng.random(300) < 0.6, labels, rng.integers(0, 10, 300))
    assert label_permutation(predictions, labels) == {}
    swapped = labels.copy()
    swapped[labels == 3], swapped[labels == 5] = 5, 3
    assert label_permutation(predictions, swapped) == {3: 5, 5: 3}
    assert label_permutation(predictions, (labels + 1) % 10) == {k: (k - 1) % 10 for k in range(10)}


def test_swapped_classes_are_no_other_order_of_channels() -> None:
    """Red and blue images change places, with the labels as with the channels."""
    labels = torch.arange(30) % 3
    x = 0.2 * torch.rand(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x[torch.arange(30), 2 - labels] += 0.6
    found = bt.evaluate(NearestColor(), Dataset.from_arrays(x, 2 - labels), ["clean"])
    names = {f.check for f in found.findings}
    assert "permuted_labels" in names
    assert not names & {"wrong_input_range", "normalized_twice", "not_normalized"}


def test_confused_or_constant_models_are_not_in_another_order() -> None:
    labels = np.repeat(np.arange(4), 20)
    assert label_permutation(np.zeros_like(labels), labels) == {}
    by_chance = np.repeat([1, 0, 1, 0, 1, 0, 1, 0, 1, 0], 20)  # knows no class but two, swapped
    assert label_permutation(by_chance, np.repeat(np.arange(10), 20)) == {}
    one_way = labels.copy()
    one_way[labels == 1] = 2  # all of one class as another, which is predicted correctly
    assert label_permutation(one_way, labels) == {}
    assert label_permutation(np.array([1, 1, 1, 0, 0, 0]), np.array([0, 0, 0, 1, 1, 1])) == {}


def test_few_images_may_miss_classes_by_chance(root: Path) -> None:
    data = load_dataset(f"folder:{root}").select([0, 1])
    assert "empty_classes" not in checks(bt.evaluate(NearestColor(), data, ["clean"]))


def test_hashes_are_cheap_and_one_for_both_dtypes() -> None:
    x = torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8)
    data = Dataset.from_arrays(x, torch.zeros(len(x), dtype=torch.int64), classes=("a",))
    started = time.process_time()
    hashes = data.image_hashes
    assert time.process_time() - started < 1
    assert hashes is not None
    assert len(np.unique(hashes)) == len(x)
    floats = Dataset.from_arrays(x[:5].float() / 255, [0] * 5, classes=("a",)).image_hashes
    assert floats is not None
    assert (floats == hashes[:5]).all()
    changed = Dataset.from_arrays(x[:5].float() / 255 * 0.999, [0] * 5, classes=("a",)).image_hashes
    assert changed is not None
    assert not np.isin(changed, hashes).any()


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "r"
    overrides = ("epochs=1", "validation.limit=8")
    bt.train("vit_tiny", "digits", "quickstart-standard", path, limit=32, overrides=overrides,
             device="cpu")  # fmt: skip
    return path


def test_evaluation_on_the_training_images_of_a_run(digits_run: Path) -> None:
    model = bt.load_model(digits_run)
    test = bt.evaluate(model, load_dataset("digits", "test", limit=40), ["clean"])
    assert "training_images" not in checks(test)
    for data in (
        load_dataset("digits", "train", limit=40),
        # Under another name: the pixels tell.
        Dataset.from_arrays(*load_dataset("digits", "train", limit=40).take(range(40))[:2]),
    ):
        found = bt.evaluate(model, data, ["clean"])
        assert checks(found)["training_images"] == "untrustworthy"
        finding = next(f for f in found.findings if f.check == "training_images")
        assert finding.evidence["training_images"] == 32  # it was trained on the first 32
    assert not bt.diagnose(model, data, limit=4).is_trustworthy


def test_a_checkpoint_on_the_train_split_is_a_warning() -> None:
    model = bt.create_model("vit_tiny", seed=0)
    found = bt.evaluate(model, load_dataset("digits", "train", limit=8), ["clean"])
    assert checks(found).get("training_images") == "warning"


def test_hashes_of_training_images(digits_run: Path, tmp_path: Path) -> None:
    images = read_training_images(digits_run, "digits")
    assert images is not None
    assert (images.split, len(images.hashes), images.copies_in_validation) == ("train", 32, 0)
    assert not images.contains(np.array([0, 2**64 - 1], dtype=np.uint64)).any()
    assert images.contains(images.hashes).all()
    nothing = TrainingImages("digits", "train", images.hashes[:0])
    assert not nothing.contains(images.hashes).any()
    write_training_images(tmp_path, images)
    assert (tmp_path / TRAINING_IMAGES_FILE).read_bytes() == (
        digits_run / TRAINING_IMAGES_FILE
    ).read_bytes()
    (tmp_path / TRAINING_IMAGES_FILE).write_text("{")
    with pytest.raises(CorruptFileError):
        read_training_images(tmp_path, "digits")
    assert read_training_images(tmp_path / "none", "digits") is None


def test_damaged_hashes_are_a_warning(digits_run: Path, tmp_path: Path) -> None:
    shutil.copytree(digits_run, tmp_path / "r")
    (tmp_path / "r" / TRAINING_IMAGES_FILE).write_text("{}")
    model = bt.load_model(tmp_path / "r")
    assert "whether images were trained on cannot be checked" in model.warnings[-1]


def test_validation_images_that_are_training_images(root: Path, tmp_path: Path) -> None:
    copy_training_images(root)
    overrides = ("epochs=1", "validation.limit=8")
    run = bt.train("vit_tiny", f"folder:{root}", "quickstart-standard", tmp_path / "r",
                   image_size=32, overrides=overrides, device="cpu")  # fmt: skip
    assert "8 validation images are training images too" in run.summary["warnings"][-1]
