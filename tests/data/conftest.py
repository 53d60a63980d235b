"""Data sets of a few images in the real formats, in a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from buttress.data import DATASETS, download_dataset
from buttress.data.datasets.cifar import CIFAR10, Array, save_arrays
from small_sets import put_archives, shrink, small_arrays


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Array]:
    """The arrays that a download must give; nothing is in the cache yet."""
    arrays = small_arrays()
    shrink(monkeypatch, arrays)
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    return arrays


@pytest.fixture(scope="session")
def full_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a small copy of every data set, each got from an archive."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        arrays = small_arrays()
        shrink(patch, arrays)
        patch.setenv("BUTTRESS_CACHE", str(cache))
        patch.delenv("BUTTRESS_IMAGENET", raising=False)
        put_archives(cache, patch)
        save_arrays(CIFAR10, arrays)
        for name in DATASETS.names():
            download_dataset(name)
        for archive in (*cache.glob("*/*.tgz"), *cache.glob("*/*.gz"), *cache.glob("*/*.zip")):
            archive.unlink()
    return cache


@pytest.fixture
def small_copies(full_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every data set is there, as a small copy; a test must not change the files."""
    shrink(monkeypatch, small_arrays())
    monkeypatch.setenv("BUTTRESS_CACHE", str(full_cache))
    monkeypatch.delenv("BUTTRESS_IMAGENET", raising=False)
    return full_cache
