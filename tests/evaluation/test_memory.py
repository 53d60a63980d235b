"""The peak memory of an evaluation does not grow with images or steps beyond the data itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
import torch
torch.set_num_threads(1)
import buttress as bt
from torch import nn

images, steps = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10))
x = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
data = bt.Dataset.from_arrays(x, torch.randint(10, (images,)), classes=list("abcdefghij"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bt.evaluate(net.eval(), data, [{"attack": "pgd", "threat": "Linf:8/255", "args": {"steps": steps}}])
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))
"""


def peak(images: int, steps: int) -> float:
    """MB by which the peak of a new process grew."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(images), str(steps)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux gives it")
def test_memory_does_not_grow_with_images_or_steps() -> None:
    base, many, long = peak(3000, 3), peak(12_000, 3), peak(3000, 12)
    assert base > 20, "it must hold at least a piece of images"
    # While it is hashed the data is there twice, 28 MB more here; a float copy would be 110 MB.
    assert many < base + 80
    assert long < base + 30, "the peak itself varies by 20 MB"
