"""Memory of training does not grow with its epochs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import resource, sys
from buttress.training import train
recipe, out = sys.argv[1:]
train("resnet_tiny", "digits", recipe, out, limit=256, device="cpu")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
RECIPE = """
epochs: {epochs}
batch_size: 32
objective: {{name: free, args: {{repeats: 2}}}}
threat: Linf:0.06
optimizer: {{name: adamw, lr: 0.001}}
augmentation: {{crop_padding: 2, mixup: 0.8}}
weight_averaging: {{kind: ema}}
awp: {{gamma: 0.005}}
validation: {{limit: 32}}
"""


def peak(folder: Path, epochs: int) -> float:
    """MB at most."""
    (folder / f"{epochs}.yaml").write_text(RECIPE.format(epochs=epochs))
    command = [
        sys.executable,
        "-c",
        TRAIN,
        str(folder / f"{epochs}.yaml"),
        str(folder / f"r{epochs}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


@pytest.mark.slow
def test_memory_does_not_grow_with_epochs(tmp_path: Path) -> None:
    few, many = peak(tmp_path, 3), peak(tmp_path, 24)
    assert many <= few + 25, f"{few:.0f} MB after 3 epochs, {many:.0f} MB after 24"
