from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from buttress.data import Dataset
from buttress.errors import UserError

X = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8)).astype(np.uint8)
Y = np.array([0, 1, 2, 1])


@pytest.mark.parametrize(
    "images",
    [X, torch.from_numpy(X), X / 255, X.astype(np.float32) / 255, torch.from_numpy(X) / 255],
    ids=["numpy uint8", "torch uint8", "float64", "float32", "torch float"],
)
def test_takes_the_usual_arrays(images: Any) -> None:
    data = Dataset.from_arrays(images, Y)
    assert torch.allclose(data.images, torch.from_numpy(X) / 255)
    assert data.images.dtype == torch.float32
    assert data.num_classes == 3
    assert data.classes == ("0", "1", "2")
    assert data.ids.tolist() == [0, 1, 2, 3]
    assert data.shape == (3, 8, 8)
    assert np.allclose(data.mean, (X / 255).mean((0, 2, 3)))
    assert np.allclose(data.std, (X / 255).std((0, 2, 3)))


def test_takes_awkward_memory() -> None:
    frozen = X.copy()
    frozen.setflags(write=False)
    for images in (frozen, X[::-1][::-1], X.astype(">f4") / 255, np.asfortranarray(X)):
        assert torch.allclose(Dataset.from_arrays(images, Y).images, torch.from_numpy(X) / 255)


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 1], Y.astype(np.uint8), Y.astype(np.uint16), torch.tensor(Y).int()]
)
def test_takes_whole_number_labels(labels: Any) -> None:
    data = Dataset.from_arrays(X, labels, ids=[9, 8, 7, 2**62], classes=["a", "b", "c", "d"])
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == [0, 1, 2, 1]
    assert data.num_classes == 4
    assert data.ids.tolist() == [9, 8, 7, 2**62]


def test_a_constant_channel_can_be_normalised() -> None:
    assert min(Dataset.from_arrays(np.zeros_like(X), Y).std) > 0


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (X.astype(np.float32), r"in \[0, 255\]; divide pixel values by 255"),
        ((X / 255 - 0.5) / 0.25, r"in \[-2, 2\]; make normalization the first layer"),
        (np.where(X > 250, np.nan, X / 255), r"contain NaN"),
        (np.where(X > 250, np.inf, X / 255), r"NaN or infinity"),
        (X.astype(np.int64), r"uint8 or floating point, but got torch.int64"),
        (X.transpose(0, 2, 3, 1), r"looks like \(N, H, W, C\); use torch's permute\(0, 3, 1, 2\)"),
        (X[:, 0], r"but got \(4, 8, 8\); add the channel with images\[:, None\]"),
        (X[0], r"but got \(3, 8, 8\); add the batch with images\[None\]"),
        (X[0, 0], r"must have shape \(N, C, H, W\)"),
        (X[:0], r"at least one image"),
        (np.array([["a"]]), r"images must be an array of numbers"),
    ],
)
def test_says_what_is_wrong_with_images(images: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Dataset.from_arrays(images, Y[: len(images)])


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (Y[:3], r"shape \(4,\), one class number per image, but got int64 of shape \(3,\)"),
        (np.eye(4), r"of shape \(4, 4\); pass y.argmax\(1\) if they are one-hot"),
        (Y[:, None], r"of shape \(4, 1\); pass y\[:, 0\]"),
        (Y / 1.0, r"got float64 of shape \(4,\); convert class numbers with y.long\(\)"),
        (Y > 1, r"but got bool"),
        (Y - 1, r"0 to 2, but are in \[-1, 1\]"),
        (Y + 1, r"0 to 2, but are in \[1, 3\]"),
    ],
)
def test_says_what_is_wrong_with_labels(labels: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Dataset.from_arrays(X, labels, classes=("a", "b", "c"))


def test_negative_labels_without_classes() -> None:
    with pytest.raises(UserError, match="0 or more"):
        Dataset.from_arrays(X, Y - 1)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2, 5, 5], "ids must be unique, but 5"),
        ([1, 2], r"shape \(4,\)"),
        (Y / 2, "one integer per image"),
    ],
)
def test_says_what_is_wrong_with_ids(ids: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Dataset.from_arrays(X, Y, ids=ids)
