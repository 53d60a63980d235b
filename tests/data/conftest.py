"""A CIFAR-10 of a few images in the real formats, in a cache of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from buttress.data import cifar10
from buttress.data.cifar10_archives import Array


def small_arrays() -> dict[str, Array]:
    source = np.random.default_rng(0)
    sizes = {"train": 50, "test": 20}
    images = {f"{k}_images": source.integers(0, 256, (n, 3, 32, 32)) for k, n in sizes.items()}
    labels = {f"{k}_labels": np.arange(n) % 10 for k, n in sizes.items()}
    return {name: array.astype(np.uint8) for name, array in (images | labels).items()}


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Array]:
    """The arrays that a download must give; nothing is in the cache yet."""
    arrays = small_arrays()
    sums = {name: cifar10.sha256(array) for name, array in arrays.items()}
    monkeypatch.setattr(cifar10, "SHA256", sums)
    monkeypatch.setattr(cifar10, "VAL", 10)
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    return arrays
