"""Memory of training grows neither with its epochs nor with a folder of images."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

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


LIMITED = """
import resource, sys
import torch
from buttress.data.readers import images
from buttress.training import train
folder, recipe, out, max_in_memory = sys.argv[1:]
torch.set_num_threads(1)
images.MAX_MEMORY_BYTES = int(max_in_memory)
train("resnet_tiny", f"folder:{folder}", recipe, out + "/first", limit=32, device="cpu")
status = open("/proc/self/status").read()
used = int(status.split("VmData:")[1].split()[0]) * 1024  # with what is allocated once
resource.setrlimit(resource.RLIMIT_DATA, (used + 100 * 2**20, -1))
train("resnet_tiny", f"folder:{folder}", recipe, out + "/all", device="cpu")
"""
LIMITED_RECIPE = """
epochs: 1
batch_size: 16
optimizer: {name: sgd, lr: 0.01}
validation: {limit: 16}
"""
IMAGES, SIDE = 1500, 224  # 226 MB of pixels


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_a_folder_larger_than_the_memory_is_trained_on(tmp_path: Path) -> None:
    """100 MB more than a short training needs; in memory, the images do not fit."""
    for part, count in (("train", IMAGES), ("val", 20)):
        for i in range(count):
            path = tmp_path / "images" / part / f"class{i % 2}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (SIDE, SIDE), (i % 256, i // 256, 99 * (i % 2))).save(path)
    (tmp_path / "recipe.yaml").write_text(LIMITED_RECIPE)

    def train_limited(name: str, max_in_memory: int) -> subprocess.CompletedProcess[str]:
        folders = [str(tmp_path / n) for n in ("images", "recipe.yaml", name)]
        command = [sys.executable, "-c", LIMITED, *folders, str(max_in_memory)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    from_disk = train_limited("disk", 2**20)
    assert from_disk.returncode == 0, from_disk.stderr[-2000:]
    assert (tmp_path / "disk" / "all" / "done.json").exists()
    in_memory = train_limited("memory", 2**30)
    assert in_memory.returncode != 0, "the limit must be one that the images exceed"
