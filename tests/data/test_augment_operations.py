"""Every operation on whole batches equals the one of Pillow on single images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn import functional as F

import buttress.models._torchvision  # noqa: F401  # torchvision may need it to be imported
from buttress.data.augment import color as colour
from buttress.data.augment import geometry
from buttress.data.augment.crops import (
    DRAWS_PER_BOX,
    CropBoxes,
    Interpolation,
    random_resized_crop,
    resize_boxes,
    sample_boxes,
)
from buttress.data.augment.operations import (
    COLOR_OPERATIONS,
    GEOMETRIC_OPERATIONS,
    OPERATIONS,
    apply_operations,
)
from buttress.errors import UserError
from buttress.system.rng import SampleRNG

N, HEIGHT, WIDTH = 48, 32, 24
FILL = (128, 128, 128)


def draw(low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(N, generator=torch.Generator().manual_seed(1)).double()


def images() -> Tensor:
    """Noise, soft pictures, and the cases where histograms are empty but for one or two levels."""
    source = torch.Generator().manual_seed(0)
    x = torch.randint(256, (N, 3, HEIGHT, WIDTH), generator=source).byte()
    rough = torch.rand(N // 2, 3, 5, 5, generator=source)
    x[::2] = F.interpolate(rough, (HEIGHT, WIDTH), mode="bilinear").mul(200).add(20).byte()
    x[0], x[1, 1] = 7, 0
    x[2] = torch.tensor([0, 255]).byte().repeat(WIDTH // 2)
    return x


def with_pillow(x: Tensor, change: Callable[[Image.Image, int], Image.Image]) -> Tensor:
    done = []
    for row, image in enumerate(x):
        array = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        changed = torch.from_numpy(np.array(change(Image.fromarray(array.numpy()), row)))
        done.append(changed.view(*x.shape[2:], x.shape[1]).permute(2, 0, 1))
    return torch.stack(done)


LEVEL_CASES: dict[str, tuple[Tensor, Callable[[Image.Image, Any], Image.Image]]] = {
    "autocontrast": (draw(0, 1), lambda image, _: ImageOps.autocontrast(image)),
    "equalize": (draw(0, 1), lambda image, _: ImageOps.equalize(image)),
    "invert": (draw(0, 1), lambda image, _: ImageOps.invert(image)),
    "posterize": (
        torch.arange(N).double() % 9,
        lambda image, bits: (
            ImageOps.posterize(image, int(bits)) if bits else image.point(lambda _: 0)
        ),
    ),
    "solarize": (draw(0, 256), ImageOps.solarize),
    "solarize_add": (
        draw(0, 110).floor(),
        lambda image, add: image.point(lambda v: min(255, v + int(add)) if v < 128 else v),
    ),
    "brightness": (draw(0, 2), lambda image, f: ImageEnhance.Brightness(image).enhance(f)),
    "contrast": (draw(0, 2), lambda image, f: ImageEnhance.Contrast(image).enhance(f)),
    "saturation": (draw(0, 2), lambda image, f: ImageEnhance.Color(image).enhance(f)),
    "sharpness": (draw(0, 2), lambda image, f: ImageEnhance.Sharpness(image).enhance(f)),
}


def moved(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=FILL
    )


MOVE_CASES: dict[str, tuple[Tensor, Callable[[Image.Image, float], Image.Image]]] = {
    "shear_x": (draw(-0.3, 0.3), lambda image, v: moved(image, 1, v, 0, 0, 1, 0)),
    "shear_y": (draw(-0.3, 0.3), lambda image, v: moved(image, 1, 0, 0, v, 1, 0)),
    "translate_x": (draw(-0.5, 0.5), lambda image, v: moved(image, 1, 0, v * WIDTH, 0, 1, 0)),
    "translate_y": (draw(-0.5, 0.5), lambda image, v: moved(image, 1, 0, 0, 0, 1, v * HEIGHT)),
    "rotate": (draw(-40, 40), lambda image, v: image.rotate(v, fillcolor=FILL)),
}
CASES = LEVEL_CASES | MOVE_CASES


@pytest.mark.parametrize("name", CASES)
def test_equals_pillow_in_every_pixel(name: str) -> None:
    amounts, change = CASES[name]
    x = images()
    expected = with_pillow(x, lambda image, row: change(image, amounts[row].item()))
    assert torch.equal(apply_operations(x, [name] * N, amounts), expected)
    assert not torch.equal(expected, x)


@pytest.mark.parametrize("name", LEVEL_CASES)
def test_grey_images_equal_pillow_too(name: str) -> None:
    amounts, change = LEVEL_CASES[name]
    x = images()[:, :1].contiguous()
    expected = with_pillow(x, lambda image, row: change(image, amounts[row].item()))
    assert torch.equal(apply_operations(x, [name] * N, amounts), expected)


def test_hue_equals_torchvision_within_a_level() -> None:
    """The two round at different places: a few pixels in a hundred differ by one level."""
    from torchvision.transforms.v2 import functional as reference

    x, turns = images(), draw(-0.5, 0.5)
    ours = colour.adjust_hue(x, turns)
    theirs = torch.stack([reference.adjust_hue(x[i], turns[i].item()) for i in range(N)])
    apart = (ours.int() - theirs.int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.1
    assert (ours != x).float().mean() > 0.5
    assert torch.equal(colour.adjust_hue(x, torch.zeros(N)), x)


def test_every_operation_has_a_case() -> None:
    assert set(OPERATIONS) == {*CASES, "hue"}
    assert set(COLOR_OPERATIONS) | set(GEOMETRIC_OPERATIONS) == set(OPERATIONS)


def test_each_image_gets_its_own_operation() -> None:
    x, amounts = images(), draw(0.1, 0.3)
    names = [(*OPERATIONS, None)[i % (len(OPERATIONS) + 1)] for i in range(N)]
    whole = apply_operations(x, names, amounts)
    for i in range(N):
        assert torch.equal(
            apply_operations(x[i : i + 1], [names[i]], amounts[i : i + 1]), whole[i : i + 1]
        )
    assert all(torch.equal(whole[i], x[i]) for i in range(N) if names[i] is None)


def test_two_channels_have_no_colour() -> None:
    with pytest.raises(UserError, match="the images have 2"):
        colour.adjust_saturation(images()[:, :2], draw(0, 1))


def test_floats_move_as_bytes_do() -> None:
    x, maps = images(), geometry.rotate(draw(-40, 40), (HEIGHT, WIDTH))
    assert torch.equal(
        geometry.apply_affine(x / 255, maps, 0), geometry.apply_affine(x, maps, 0) / 255
    )


def some_boxes() -> CropBoxes:
    source = torch.Generator().manual_seed(2)
    height = torch.randint(3, HEIGHT + 1, (N,), generator=source)
    width = torch.randint(3, WIDTH + 1, (N,), generator=source)
    height[0], width[0] = HEIGHT, WIDTH
    top = (torch.rand(N, generator=source) * (HEIGHT - height + 1)).long()
    left = (torch.rand(N, generator=source) * (WIDTH - width + 1)).long()
    return CropBoxes(top, left, height, width, torch.ones(N, dtype=torch.bool))


@pytest.mark.parametrize(
    ("interpolation", "most", "share"), [("bilinear", 0, 0.0), ("bicubic", 2, 0.005)]
)
def test_resized_parts_equal_pillow(interpolation: Interpolation, most: int, share: float) -> None:
    """Pillow's weights have 22 bits, ours 14: one bicubic pixel in 300 is a level or two off."""
    x, boxes = images(), some_boxes()
    edges = torch.stack([boxes.left, boxes.top, boxes.left + boxes.width, boxes.top + boxes.height])

    def resized(image: Image.Image, row: int) -> Image.Image:
        part = image.crop(tuple(edges[:, row].tolist()))
        return part.resize((WIDTH, HEIGHT), Image.Resampling[interpolation.upper()])

    ours = resize_boxes(x, boxes, interpolation)
    apart = (ours.int() - with_pillow(x, resized).int()).abs()
    assert apart.max() <= most
    assert (apart > 0).float().mean() <= share
    assert torch.equal(ours[0], x[0])


def test_boxes_have_the_area_and_the_shape_asked_for() -> None:
    fractions = SampleRNG(0, "box", torch.arange(4000)).draw_fractions(DRAWS_PER_BOX, "box")
    boxes = sample_boxes(fractions, (100, 80), area=(0.1, 0.4), ratio=(0.5, 2.0))
    area = boxes.height * boxes.width / 8000
    log_ratio = (boxes.width / boxes.height).log()
    assert bool(boxes.fits.all())
    assert area.min() > 0.09
    assert area.max() < 0.41
    assert abs(area.mean() - 0.25) < 0.01
    assert log_ratio.abs().max() < 0.72
    assert abs(log_ratio.mean()) < 0.02
    assert boxes.top.min() == 0
    assert (boxes.top + boxes.height).max() == 100
    assert (boxes.left + boxes.width).max() == 80
    spare = (100 - boxes.height).clamp_min(1)
    assert abs((boxes.top / spare).mean() - 0.5) < 0.02


@pytest.mark.parametrize("shape", [(8, 16), (16, 8)])
def test_a_part_that_never_fits_is_the_largest_in_the_middle(shape: tuple[int, int]) -> None:
    """As in torchvision: a square from the middle of a wide or a tall image."""
    x = torch.randint(256, (4, 3, *shape)).byte()
    streams = SampleRNG(0, "a", torch.arange(4))
    out = random_resized_crop(x, streams, scale=(2.0, 3.0), ratio=(1.0, 1.0))
    top, left, side = (torch.full((4,), n) for n in ((shape[0] - 8) // 2, (shape[1] - 8) // 2, 8))
    box = CropBoxes(top, left, side, side, torch.ones(4, dtype=torch.bool))
    assert torch.equal(out, resize_boxes(x, box))
