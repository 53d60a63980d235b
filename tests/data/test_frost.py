"""Frost with photographs: crops as published, told apart from drawn crystals everywhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import corrupt, corrupt_dataset, load_dataset
from buttress.data.corruptions import frost as module
from buttress.data.corruptions.core import to_grayscale
from buttress.evaluation.suite import corruption_source
from buttress.system.rng import SampleRNG

HEIGHT, WIDTH = 200, 255
ROWS = 600


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """(5, H, W, 3) photographs whose pixels say where they are: row, column, file."""
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(np.uint8)
    images = np.stack([np.stack([rows, columns, np.full_like(rows, k)], -1) for k in range(5)])
    for name, image in zip(module.PHOTOGRAPHS, images, strict=True):
        Image.fromarray(image).save(folder / name, format="PNG")
    monkeypatch.syspath_prepend(str(tmp_path))
    return images


def crops(height: int, width: int, channels: int = 3) -> np.ndarray:
    folder = module.photograph_folder()
    assert folder is not None
    x = torch.zeros(ROWS, channels, height, width, dtype=torch.float64)
    made = module.crop_photographs(x, SampleRNG(0, "test", torch.arange(ROWS)), folder)
    return (made * 255).permute(0, 2, 3, 1).numpy()


def test_crops_are_drawn_as_published(photographs: np.ndarray) -> None:
    """Large images: one of five files, any place, no scaling; randint leaves the last place out."""
    made = np.rint(crops(70, 80)).astype(int)
    top, left, file = made[:, 0, 0].T
    for row in range(0, ROWS, 40):
        cut = photographs[file[row], top[row] : top[row] + 70, left[row] : left[row] + 80]
        assert np.array_equal(made[row], cut)
    assert np.bincount(file, minlength=5).min() > 0.7 * ROWS / 5
    for starts, room in ((top, HEIGHT - 70), (left, WIDTH - 80)):
        assert 0 <= starts.min() <= 3
        assert room - 4 <= starts.max() <= room - 1


def test_small_images_get_smaller_photographs(photographs: np.ndarray) -> None:
    """At a fifth, a pixel is the middle one of five; at 64 pixels photographs are three tenths."""
    made = np.rint(crops(32, 32)).astype(int)
    assert (made[:, :, :, 0] % 5 == 2).all()
    assert (np.diff(made[:, :, :, 1], axis=2) == 5).all()
    medium = crops(40, 40)
    assert np.allclose(np.diff(medium[:, :, 0, 0], axis=1), 10 / 3, atol=1.01)


def test_a_photograph_that_is_too_small_is_enlarged(photographs: np.ndarray) -> None:
    made = crops(400, 90)
    assert made.shape == (ROWS, 400, 90, 3)
    folder = module.photograph_folder()
    assert folder is not None
    assert module.load_photograph(folder / module.PHOTOGRAPHS[0], 400, 90).shape[1] == 440


@pytest.mark.parametrize("channels", [1, 3])
def test_image_and_ice_are_weighted_as_published(photographs: np.ndarray, channels: int) -> None:
    ids = torch.arange(4)
    x = torch.rand(4, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    x = (x * 255).round() / 255
    folder = module.photograph_folder()
    assert folder is not None
    streams = SampleRNG(7, "corruption frost 4", ids)
    ice = module.crop_photographs(torch.zeros(4, 3, 32, 32).double(), streams, folder)
    ice = ice if channels == 3 else to_grayscale(ice)
    expected = ((0.85 * x.double() + 0.4 * ice).clamp(0, 1) * 255 + 1e-6).floor() / 255
    assert torch.equal(corrupt(x, "frost", 4, ids, seed=7), expected.float())


def test_identity_says_what_was_pasted(
    photographs: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_dataset("digits", limit=3)
    pasted = corrupt_dataset(data, "frost", 2)
    first = pasted.images, pasted.fingerprint(), corruption_source(data, "frost", 2)
    assert first[2] == "digits+frost-2 version 1 photographs"
    assert corruption_source(data, "fog", 2) == "digits+fog-2 version 1"
    assert "imagecorruptions" not in sys.modules
    monkeypatch.setattr(module, "photograph_folder", lambda: None)
    drawn = corrupt_dataset(data, "frost", 2)
    assert not torch.equal(drawn.images, first[0])
    assert drawn.fingerprint() != first[1]
    assert corruption_source(data, "frost", 2) == "digits+frost-2 version 1"


def test_an_incomplete_folder_is_not_used(photographs: np.ndarray) -> None:
    folder = module.photograph_folder()
    assert folder is not None
    (folder / module.PHOTOGRAPHS[3]).unlink()
    assert module.photograph_folder() is None
    assert module.frost_variant() == ""


@pytest.mark.skipif(find_spec("imagecorruptions") is None, reason="no photographs installed")
def test_the_installed_photographs() -> None:
    folder = module.photograph_folder()
    assert folder is not None
    sizes = []
    for name in module.PHOTOGRAPHS:
        with Image.open(folder / name) as image:
            sizes.append(image.size)
    assert sizes == [(900, 600), (560, 315), (560, 315), (527, 350), (660, 495)]
    made = crops(32, 32)
    assert made.std() > 40
    assert 80 < made.mean() < 180
    assert "cv2" not in sys.modules
