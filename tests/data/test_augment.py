from __future__ import annotations

import pytest
import torch
from torch import Tensor

from buttress.data import Augmentation, epoch_permutation
from buttress.data.augment import random_crop, random_flip
from buttress.data.augment.color import to_uint8
from buttress.errors import UserError
from buttress.results.run_spec import (
    AugmentationSpec,
    ColorJitterSpec,
    RandAugmentSpec,
    ResizedCropSpec,
)
from buttress.system.rng import SampleRNG

BOTH = Augmentation(crop_padding=4, horizontal_flip=True)
EACH = {
    "crop": Augmentation(crop_padding=4),
    "flip": Augmentation(horizontal_flip=True),
    "resized crop": Augmentation(resized_crop=ResizedCropSpec()),
    "bilinear": Augmentation(resized_crop=ResizedCropSpec(interpolation="bilinear")),
    "rotation": Augmentation(rotation=20.0),
    "jitter": Augmentation(
        color_jitter=ColorJitterSpec(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2)
    ),
    "auto cifar10": Augmentation(auto_augment="cifar10"),
    "auto imagenet": Augmentation(auto_augment="imagenet"),
    "rand": Augmentation(rand_augment=RandAugmentSpec()),
    "erasing": Augmentation(random_erasing=0.6),
    "all": Augmentation.from_spec("ablation-1111"),
}
BASE = {"resized_crop": {}, "horizontal_flip": True, "color_jitter": 0.4}


def streams(ids: Tensor) -> SampleRNG:
    return SampleRNG(0, "augment", ids)


def images(n: int) -> Tensor:
    return torch.randint(1, 256, (n, 3, 16, 12), generator=torch.Generator().manual_seed(0)).byte()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_is_a_shift_with_black_moving_in(dtype: torch.dtype) -> None:
    x, ids = images(300).to(dtype), torch.arange(300)
    out = random_crop(x, 2, streams(ids))
    assert out.dtype == dtype
    assert out.shape == x.shape
    shifts = set()
    for before, after in zip(x, out, strict=True):
        padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
        fits = [
            (dy, dx)
            for dy in range(5)
            for dx in range(5)
            if torch.equal(padded[:, dy : dy + 16, dx : dx + 12], after)
        ]
        assert len(fits) == 1
        shifts.update(fits)
    assert len(shifts) == 25


def test_flip_mirrors_half_of_the_images() -> None:
    x = images(2000)
    out = random_flip(x, streams(torch.arange(2000)))
    same = (out == x).flatten(1).all(1)
    mirrored = (out == x.flip(3)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 0.45 < mirrored.float().mean() < 0.55


def test_crop_and_flip_are_drawn_apart() -> None:
    s = streams(torch.arange(10_000))
    crop, flip = s.draw_integers(81, "crop"), s.draw_integers(2, "flip")
    assert torch.bincount(crop, minlength=81).min() > 70
    assert abs(torch.corrcoef(torch.stack([crop, flip]).double())[0, 1]) < 0.05


@pytest.mark.parametrize("how", EACH.values(), ids=EACH)
def test_a_sample_is_treated_alike_in_every_batch(how: Augmentation) -> None:
    x, ids = images(24), torch.randint(2**62, (24,), generator=torch.Generator().manual_seed(5))
    whole = how(x, streams(ids), 3)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(6))
    assert torch.equal(how(x[order], streams(ids[order]), 3), whole[order])
    for size in (1, 7, 8):
        parts = zip(x.split(size), ids.split(size), strict=True)
        assert torch.equal(torch.cat([how(p, streams(i), 3) for p, i in parts]), whole)
    one_by_one = [how(x[i : i + 1] / 255, streams(ids[i : i + 1]), 3) for i in range(24)]
    assert torch.equal(torch.cat(one_by_one), whole / 255)


@pytest.mark.parametrize("how", EACH.values(), ids=EACH)
def test_epochs_seeds_and_purposes_differ(how: Augmentation) -> None:
    x, ids = images(50), torch.arange(50)
    base = how(x, streams(ids), 0)
    assert torch.equal(how(x, streams(ids), 0), base)
    assert not torch.equal(how(x, streams(ids), 1), base)
    assert not torch.equal(how(x, SampleRNG(1, "augment", ids), 0), base)
    assert not torch.equal(how(x, SampleRNG(0, "other", ids), 0), base)


@pytest.mark.parametrize("how", EACH.values(), ids=EACH)
def test_images_stay_images(how: Augmentation) -> None:
    x, ids = images(50), torch.arange(50)
    before = x.clone()
    for given in (x, x / 255, x[:, :1], (x / 255).double()):
        out = how(given, streams(ids), 0)
        assert out.dtype == given.dtype
        assert out.shape == given.shape
        assert out.is_contiguous()
        assert out.min() >= 0
        assert out.max() <= (255 if out.dtype == torch.uint8 else 1)
        assert not torch.equal(out, given)
    assert torch.equal(x, before)


def test_the_draws_of_crops_and_flips_are_pinned() -> None:
    """Runs that were trained with them can be trained again to the same weights."""
    out = BOTH(images(3), streams(torch.tensor([0, 1, 7])), 2)
    assert out.long().sum((1, 2, 3)).tolist() == [61559, 57696, 55803]
    assert out[:, 0, 8, 6].tolist() == [179, 230, 100]


def test_leaves_input_and_global_generator_alone() -> None:
    x = images(10)
    before, state = x.clone(), torch.get_rng_state()
    BOTH(x, streams(torch.arange(10)), 0)
    epoch_permutation(10, 0, 0)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_floats_become_the_nearest_level() -> None:
    assert to_uint8(torch.tensor([0.4, 1.4, 1.6, 254.7]) / 255).tolist() == [0, 1, 2, 255]


def test_a_name_or_a_number_stands_for_fields() -> None:
    assert Augmentation.from_spec("ablation-0000") == Augmentation.from_spec(
        AugmentationSpec(**BASE)
    )
    three = ColorJitterSpec(brightness=0.4, contrast=0.4, saturation=0.4)
    assert Augmentation(color_jitter=0.4).color_jitter == three  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"'ablation-0012'; did you mean 'ablation-\d{4}'"):
        Augmentation.from_spec("ablation-0012")


def test_nothing_asked_nothing_done() -> None:
    x = images(5)
    assert torch.equal(Augmentation()(x, streams(torch.arange(5)), 0), x)
    assert BOTH(x[:0], streams(torch.arange(0)), 0).shape == (0, 3, 16, 12)
    with pytest.raises(UserError, match=r"crop_padding: Input.+got -1"):
        Augmentation(crop_padding=-1)


def test_epoch_order() -> None:
    order = epoch_permutation(100, seed=1, epoch=2)
    assert sorted(order.tolist()) == list(range(100))
    assert torch.equal(order, epoch_permutation(100, seed=1, epoch=2))
    assert not torch.equal(order, epoch_permutation(100, seed=1, epoch=3))
    assert not torch.equal(order, epoch_permutation(100, seed=2, epoch=2))
