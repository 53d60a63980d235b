from __future__ import annotations

import numpy as np
import pytest
import torch

from buttress.data import load_dataset
from buttress.data.datasets.digits import upsample_exact
from buttress.errors import UserError

# Runs recorded anywhere refer to these images: a change here breaks every stored result.
FINGERPRINTS = {
    "train": "92d5a5c089eb3428b0c11167c8f569e0728f9417b916fae0ffbfbebdd1ce53bc",
    "val": "8e2866dfae71aa3a75b5c838f481cc76afa7ff8187e31bc991814451ba95bf4c",
    "test": "7e8b962e5b9b438255003f4e9592e227ed658f03749ac812747f0613321bde59",
    "train+val": "c472cffe43cab18fbbedd296729f2889516381353d84d680bd05f677410c73fc",
}
SIZES = {"train": 1200, "val": 200, "test": 397, "train+val": 1400}


@pytest.mark.parametrize("split", FINGERPRINTS)
def test_the_images_never_change(split: str) -> None:
    data = load_dataset("digits", split)
    assert len(data) == SIZES[split]
    assert data.shape == (3, 32, 32)
    assert data.fingerprint() == FINGERPRINTS[split]


@pytest.mark.parametrize("split", SIZES)
def test_each_split_has_the_classes_in_equal_shares(split: str) -> None:
    everything = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]) / 1797
    result = load_dataset("digits", split).labels.bincount().numpy()
    assert np.abs(result - everything * SIZES[split]).max() <= 1


def test_grey_and_mean_of_the_training_images() -> None:
    data = load_dataset("digits", "train")
    assert torch.equal(data.images[:, 0], data.images[:, 2])
    assert np.allclose(data.mean, data.images.double().mean((0, 2, 3)), atol=1e-6)
    assert np.allclose(data.std, data.images.double().std((0, 2, 3), correction=0), atol=1e-6)


@pytest.mark.parametrize("size", [8, 17, 32, 64])
def test_enlarging_agrees_with_bilinear_interpolation(size: int) -> None:
    grey = np.random.default_rng(0).integers(0, 17, (5, 8, 8))
    ours = upsample_exact(grey, size)
    levels = torch.from_numpy(grey)[:, None].double() * 255 / 16
    theirs = torch.nn.functional.interpolate(levels, size=size, mode="bilinear")[:, 0]
    assert np.abs(ours - theirs.numpy()).max() <= 0.5 + 1e-9
    assert load_dataset("digits", limit=2, image_size=size).shape == (3, size, size)


@pytest.mark.parametrize("size", [7, 65])
def test_sizes_out_of_range(size: int) -> None:
    with pytest.raises(UserError, match=f"8 <= image_size <= 64.*, but got image_size={size}"):
        load_dataset("digits", image_size=size)
