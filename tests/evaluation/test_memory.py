"""The peak memory of an evaluation does not grow with images or steps beyond the data itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.data.core import IMAGENET_BUDGETS, Dataset
from buttress.system.progress import Progress

SCRIPT = """
import json, resource, sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from evaluation.test_memory import evaluate_images
from buttress.data import Dataset

images, steps, size = map(int, sys.argv[2:5])
if size == 32:
    x = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
    y = torch.randint(10, (images,))
    data = Dataset.from_arrays(x, y, classes=list("abcdefghij"))
else:
    from evaluation.test_memory import made_up_dataset
    data = made_up_dataset(images, size)
evaluate_images(data.select(range(4)), 1)  # what is allocated once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
evaluate_images(data, steps)
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))
"""


@dataclass(frozen=True, eq=False)
class MadeUpPixels:
    """Images that are made when they are asked for, as those of a large folder are read."""

    length: int
    size: int
    takes: list[int] = field(default_factory=list)  # how many images at a time

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.length, 3, self.size, self.size

    def __len__(self) -> int:
        return self.length

    def take(self, indices: Tensor) -> Tensor:
        self.takes.append(len(indices))
        shades = (indices % 251).to(torch.uint8).view(-1, 1, 1, 1)
        generator = torch.Generator().manual_seed(0)
        shape = (3, self.size, self.size)
        pattern = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return pattern + shades  # modulo 256

    def select(self, indices: Tensor) -> MadeUpPixels:
        return MadeUpPixels(len(indices), self.size, self.takes)

    def fingerprint_bytes(self) -> Iterator[bytes]:
        yield b"made up"

    def load_into_memory(self, progress: Progress) -> MadeUpPixels:
        return self


def made_up_dataset(images: int, size: int = 224) -> Dataset:
    ids = torch.arange(images)
    return Dataset(
        "made-up", "test", MadeUpPixels(images, size), ids % 10, ids, tuple("abcdefghij"),
        (0.5,) * 3, (0.5,) * 3, IMAGENET_BUDGETS,
    )  # fmt: skip


def evaluate_images(data: Dataset, steps: int, batch_size: int = 64) -> None:
    torch.manual_seed(0)
    pool = nn.AdaptiveAvgPool2d(4)
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), pool, nn.Flatten(), nn.Linear(128, 10))
    attack: Any = {"attack": "pgd", "threat": "Linf:8/255", "args": {"steps": steps}}
    bt.evaluate(net.eval(), data, [attack], batch_size=batch_size)


def peak(images: int, steps: int, size: int = 32) -> float:
    """MB by which the peak of a new process grew, the smaller of two: the allocator adds noise."""
    call = [sys.executable, "-c", SCRIPT, str(__file__.rpartition("/evaluation/")[0])]
    numbers = [str(number) for number in (images, steps, size)]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    return min(
        float(json.loads(subprocess.run([*call, *numbers], capture_output=True, text=True,
                                        check=True, env=environment).stdout))
        for _ in range(2)
    )  # fmt: skip


def test_images_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buttress.engine.run.MAX_CHUNK_BYTES", 64 * 4 * 3 * 16**2)
    data = made_up_dataset(300, 16)
    evaluate_images(data, 1, batch_size=32)
    assert isinstance(data.pixels, MadeUpPixels)
    assert max(data.pixels.takes) <= 128  # a sample of fixed size is checked
    assert sum(data.pixels.takes) <= 8 * len(data), "each image is read a few times at most"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux gives it")
def test_memory_does_not_grow_with_images_or_steps() -> None:
    base, many, long = peak(3000, 3), peak(12_000, 3), peak(3000, 12)
    # While it is hashed the data is there twice, 28 MB more here; a float copy would be 110 MB.
    assert many < base + 90
    assert long < base + 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux gives it")
def test_memory_is_flat_for_images_of_imagenet_size() -> None:
    few, many = peak(150, 1, 224), peak(1500, 1, 224)
    # 1,350 images more are 203 MB as bytes and 813 MB as floats.
    assert many < few + 100, f"{few:.0f} MB for 150 images, {many:.0f} MB for 1,500"


LIMITED = """
import resource, sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from evaluation.test_memory import evaluate_images, made_up_dataset
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]) * 2**20, -1))
data = made_up_dataset(3000)
if sys.argv[3] == "memory":
    images = data.images
evaluate_images(data, 5)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_images_larger_than_the_memory_are_evaluated() -> None:
    """With Python, torch and all checks; 3,000 images are 1.8 GB as floats."""

    def evaluate_limited(place: str) -> subprocess.CompletedProcess[str]:
        folder = str(__file__.rpartition("/evaluation/")[0])
        call = [sys.executable, "-c", LIMITED, folder, "1000", place]
        return subprocess.run(call, capture_output=True, text=True, check=False)

    from_disk = evaluate_limited("disk")
    assert from_disk.returncode == 0, from_disk.stderr[-2000:]
    assert evaluate_limited("memory").returncode != 0, "the images must exceed the limit"
