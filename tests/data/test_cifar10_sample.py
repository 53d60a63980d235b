"""The bundled images of CIFAR-10 are those of CIFAR-10."""

from __future__ import annotations

import pytest

from buttress.data import load_dataset
from buttress.data.datasets.cifar import CIFAR10, FIRST_TEST_ID
from buttress.errors import UserError

# Of the images of the official archive; cards of the zoo refer to them.
FINGERPRINTS = {
    "train": "49118d22ff7ef298a787729b525100d81e236ed7c27e374432fdafbbf7ae5a94",
    "val": "d86bd39269a0afb81d635989b2a8c832a21fe98e3633627f15b29e5850974f60",
    "test": "83069eb97f318cd19a9727286b2bda99ac9e261be28b02360474d631724be755",
}


@pytest.mark.parametrize("split", FINGERPRINTS)
def test_the_images_never_change(split: str) -> None:
    assert load_dataset("cifar10_sample", split).fingerprint() == FINGERPRINTS[split]


def test_they_are_numbered_and_normalized_as_in_the_dataset() -> None:
    sample = load_dataset("cifar10_sample")
    assert sample.ids.tolist() == list(range(FIRST_TEST_ID, FIRST_TEST_ID + 200))
    assert (sample.mean, sample.std, sample.classes) == (CIFAR10.mean, CIFAR10.std, CIFAR10.classes)


def test_other_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="must be 32, but got 64"):
        load_dataset("cifar10_sample", image_size=64)
