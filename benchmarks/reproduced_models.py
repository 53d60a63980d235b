"""Reproductions in Python: models and images whose numbers were false.

Each function returns what the sources that are first on the path say, as one line.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduced_commands import TRAIN, command, work_folder

IGNORED_CHECKS = {"few_images", "near_chance_accuracy", "guessing"}


def trust_of(found: Any) -> str:
    """Whether results are trusted; earlier versions have another name for it."""
    trusted = found.is_trustworthy if hasattr(found, "is_trustworthy") else found.trustworthy
    return "trustworthy" if trusted else "untrustworthy"


def findings_of(found: Any) -> str:
    names = {str(getattr(f, "check", "") or f.name) for f in found.findings}
    return ", ".join(f"`{name}`" for name in sorted(names - IGNORED_CHECKS)) or "no finding"


def fast_on(name: str, threat: str = "Linf:0.15") -> str:
    """`fast` on a model that only looks robust."""
    import buttress as bt
    from evaluation.broken_models import BROKEN, digits

    found: Any = bt.evaluate(BROKEN[name].make(), digits("test"), [f"fast:{threat}"])
    return f"{100 * found.worst_case:.0f}%, {trust_of(found)}"


def doctor_on(name: str) -> str:
    import buttress as bt
    from evaluation.broken_models import BROKEN, EPS, digits

    found: Any = bt.diagnose(BROKEN[name].make(), digits("test"), f"Linf:{EPS}")
    return f"{100 * min(found.accuracy.values()):.0f}%, {trust_of(found)}"


def clean_on(name: str) -> str:
    """The findings of an evaluation without an attack."""
    import buttress as bt
    from evaluation.broken_models import BROKEN, digits

    found: Any = bt.evaluate(BROKEN[name].make(), digits("test"), ["clean"])
    return f"clean accuracy {100 * found.accuracy['clean']:.0f}%, {findings_of(found)}"


def no_normalization(mean: tuple[float, ...], std: tuple[float, ...], images: int) -> str:
    """Brightness tells the class, but only after a normalization that nobody does."""
    from evaluation.unnormalized import BrightnessModel, brightness_images

    return normalization_findings(BrightnessModel(mean, std), brightness_images(images))


def no_normalization_behind_the_first() -> str:
    from evaluation.unnormalized import BrightnessModel, white_images_first

    return normalization_findings(BrightnessModel((0.5,), (0.5,)), white_images_first())


def normalization_findings(model: Any, data: Any) -> str:
    import buttress as bt

    model = model.eval()
    is_correct = model(model.normalized(data.images)).argmax(1) == data.labels
    found: Any = bt.evaluate(model, data, ["clean"])
    clean, normalized = found.accuracy["clean"], float(is_correct.float().mean())
    accuracies = f"{100 * clean:.0f}%, normalized {100 * normalized:.0f}%"
    return f"clean accuracy {accuracies}: {findings_of(found)}"


def image_folder(root: Path) -> None:
    import numpy as np
    from PIL import Image

    source = np.random.default_rng(0)
    for split in ("train", "val"):
        for channel, name in enumerate(("red", "green", "blue")):
            (root / split / name).mkdir(parents=True)
            for number in range(8):
                pixels = source.integers(0, 100, (8, 8, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")


def findings_of_images(change: Callable[[Path], None]) -> str:
    """What an evaluation says about an image folder with a mistake in it."""
    import torch

    import buttress as bt

    class Brightest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 10 * x.mean((2, 3))[:, [2, 1, 0]]  # classes are sorted: blue, green, red

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        image_folder(root)
        change(root)
        data = bt.load_dataset(f"folder:{root}", "test")
        found: Any = bt.evaluate(Brightest().eval(), data, ["clean"])
    low, _ = found.interval()
    accuracy = f"{100 * found.accuracy['clean']:.0f}%"
    return f"clean accuracy {accuracy} (at least {100 * low:.0f}%), {findings_of(found)}"


def swap_classes(root: Path) -> None:
    for old, new in (("red", "x"), ("blue", "red"), ("x", "blue")):
        (root / "val" / old).rename(root / "val" / new)


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


def stray_images(root: Path) -> None:
    for number in range(3):
        shutil.copy(root / "train" / "red" / f"{number}.png", root / "val" / f"{number}.png")


def own_training_split() -> str:
    """A run, evaluated on the images that it was trained on."""
    import buttress as bt

    with work_folder() as folder:
        command(*TRAIN, cwd=folder)
        data = bt.load_dataset("digits", "train", limit=32)
        found: Any = bt.evaluate(bt.load_model(folder / "run"), data, ["clean"])
    return f"{trust_of(found)}, {findings_of(found)}"


def records_and_clocks() -> str:
    """Losses of evaluations whose clocks run at random speed."""
    import torch

    import buttress as bt
    from buttress.data import Dataset

    model = bt.create_model("resnet_tiny", num_classes=10, image_size=32, seed=0).eval()
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = Dataset.from_arrays(x, model(x).argmax(1), classes=list("abcdefghij"))
    clocks, losses = (time.perf_counter, time.monotonic), set()
    for seed in range(6):
        now, source = [0.0], random.Random(seed)

        def clock(now: list[float] = now, source: random.Random = source) -> float:
            now[0] += source.choice((1e-5, 1e-3, 0.1, 2.0)) * source.random()
            return now[0]

        time.perf_counter = time.monotonic = clock
        try:
            found: Any = bt.evaluate(model, data, ["pgd:Linf:0.02", "fab-t:Linf:0.02"])
        finally:
            time.perf_counter, time.monotonic = clocks
        losses.add(b"".join(r.loss.tobytes() for r in found.records.values()))
    return f"{len(losses)} different sets of losses in 6 evaluations"
