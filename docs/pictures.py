"""Photographs under every augmentation and every corruption, as grids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image
from torch import Tensor

from buttress.data import Augmentation, corrupt, list_corruptions
from buttress.results.run_spec import ColorJitterSpec, RandAugmentSpec, ResizedCropSpec
from buttress.system.rng import SampleRNG

SIDE, GAP, LABEL, DRAWS = 96, 6, 215, 5
SEVERITY, ACROSS, CAPTION = 3, 5, 18

ROWS = {
    "crop_padding: 12, horizontal_flip": Augmentation(crop_padding=12, horizontal_flip=True),
    "resized_crop": Augmentation(resized_crop=ResizedCropSpec()),
    "rotation: 15": Augmentation(rotation=15.0),
    "color_jitter: 0.4": Augmentation(
        color_jitter=ColorJitterSpec(brightness=0.4, contrast=0.4, saturation=0.4)
    ),
    "color_jitter: {hue: 0.2}": Augmentation(color_jitter=ColorJitterSpec(hue=0.2)),
    "auto_augment: cifar10": Augmentation(auto_augment="cifar10"),
    "auto_augment: imagenet": Augmentation(auto_augment="imagenet"),
    "rand_augment": Augmentation(rand_augment=RandAugmentSpec()),
    "random_erasing: 1": Augmentation(random_erasing=1.0),
    "mixup: 0.8": Augmentation(mixup=0.8),
    "cutmix: 1": Augmentation(cutmix=1.0),
}


def draw(path: Path) -> None:
    """Writes the grid of augmentations as a PNG: a row for each, five draws across."""
    step = SIDE + GAP
    sheet = Image.new("RGB", (LABEL + DRAWS * step, len(ROWS) * step), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (label, how) in enumerate(ROWS.items()):
        pen.text((0, row * step + SIDE // 2 - 6), label, fill="black", font_size=13)
        for column, image in enumerate(augmented(how)):
            sheet.paste(image, (LABEL + column * step, row * step))
    sheet.save(path, optimize=True)


def augmented(how: Augmentation) -> list[Image.Image]:
    """The photographs as the first epochs see them; partners of a mixture change places."""
    first, second = photograph("flower.jpg"), photograph("china.jpg")
    pictures = []
    for epoch in range(DRAWS):
        x = torch.stack([first, second])
        streams = SampleRNG(1, "pictures", torch.arange(2))
        x = how.mix(how(x, streams, epoch), streams, epoch).x
        array = x[0].mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
        pictures.append(Image.fromarray(array))
    return pictures


def draw_corruptions(path: Path) -> None:
    """Writes a clean photograph and each corruption of it at one severity as a PNG."""
    clean = photograph("china.jpg").unsqueeze(0).float() / 255
    names = [*list_corruptions("common"), *list_corruptions("extra")]
    images = {"clean": clean}
    images |= {name: corrupt(clean, name, SEVERITY, torch.arange(1)) for name in names}
    wide, tall = SIDE + 4 * GAP, SIDE + CAPTION + GAP
    sheet = Image.new("RGB", (ACROSS * wide, -(-len(images) // ACROSS) * tall), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (name, x) in enumerate(images.items()):
        row, column = divmod(place, ACROSS)
        array = x[0].mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
        sheet.paste(Image.fromarray(array), (column * wide, row * tall + CAPTION))
        pen.text((column * wide, row * tall + 2), name, fill="black", font_size=12)
    sheet.save(path, optimize=True)


def photograph(name: str) -> Tensor:
    """(3, SIDE, SIDE) uint8: the middle of a photograph that comes with scikit-learn."""
    image = Image.fromarray(load_sample_image(name))
    edge = (image.width - image.height) // 2
    square = image.crop((edge, 0, edge + image.height, image.height)).resize((SIDE, SIDE))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)
