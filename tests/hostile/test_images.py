"""Image files and folders of images that are damaged, disguised or endless."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import Dataset, load_dataset
from buttress.data.readers.images import decode_image, read_image_size
from hostile_cases import CUTS, cut, flipped, guarded, refusal, unless_refused

# Pillow warns of odd tags and of many pixels, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")
FORMATS = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "webp": "WEBP", "ppm": "PPM", "tiff": "TIFF"}


def picture(mode: str = "RGB", size: tuple[int, int] = (24, 20), seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind, **options)
    return out.getvalue()


GOOD = {ending: encoded(picture(), kind) for ending, kind in FORMATS.items()}


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, bits: int = 8, colour: int = 2, body: bytes = b"") -> bytes:
    """A PNG that says anything of itself."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    packed = zlib.compress(body)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def sixteen_bits() -> bytes:
    return encoded(Image.fromarray(np.full((8, 8), 40_000, np.uint16)))


def read(content: bytes, ending: str, folder: Path) -> np.ndarray | None:
    path = folder / f"image.{ending}"
    path.write_bytes(content)
    with guarded(folder):
        unless_refused(lambda: read_image_size(path), path.name)
        found = unless_refused(lambda: decode_image(path, 16), path.name)
        unless_refused(lambda: decode_image(path, 16, resize_shorter_side=18), path.name)
    return found


@pytest.mark.parametrize("share", CUTS[:-1])  # the last bytes of a PNG are no pixels
@pytest.mark.parametrize("ending", FORMATS)
def test_truncated(ending: str, share: float, tmp_path: Path) -> None:
    assert read(cut(GOOD[ending], share), ending, tmp_path) is None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ending", FORMATS)
def test_flipped(ending: str, seed: int, tmp_path: Path) -> None:
    found = read(flipped(GOOD[ending][:300], seed, 3) + GOOD[ending][300:], ending, tmp_path)
    assert found is None or found.shape == (3, 16, 16)


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
def test_flipped_many_times(ending: str, tmp_path: Path) -> None:
    for seed in range(100, 800):
        found = read(flipped(GOOD[ending], seed, 1 + seed % 6), ending, tmp_path)
        assert found is None or found.shape == (3, 16, 16)


REFUSED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"a picture of a cat\n" * 100,
    "a page": lambda: b"<html><body>404</body></html>",
    "a pickle": lambda: b"\x80\x04cos\nsystem\n.",
    "no pixels": lambda: png(0, 0),
    "no width": lambda: png(0, 10),
    "fewer bytes than pixels": lambda: png(500, 500),
    "a bomb of a thousand million pixels": lambda: png(1 << 15, 1 << 15, 1, 0),
    "a bomb beyond all limits": lambda: png(0x7FFFFFFF, 0x7FFFFFFF),
    "a bomb below the limit of Pillow": lambda: png(9000, 9000, 1, 0, bytes(9000 * 1126)),
    "32 bits": lambda: encoded(Image.fromarray(np.full((8, 8), 1 << 20, np.int32)), "TIFF"),
    "numbers with a point": lambda: encoded(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"),
    "bits that no PNG has": lambda: png(8, 8, 77, 2, bytes(200)),
    "a colour that no PNG has": lambda: png(8, 8, 8, 99, bytes(200)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    assert read(REFUSED[name](), "png", tmp_path) is None


def animated(kind: str) -> bytes:
    frames = [picture(seed=k) for k in range(3)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def with_bytes_transparent() -> bytes:
    image = picture().quantize(16)
    return encoded(image, transparency=bytes([0, 128] * 8))


LEGAL: dict[str, Callable[[], bytes]] = {
    "1 x 1": lambda: encoded(picture(size=(1, 1))),
    "1 x 500": lambda: encoded(picture(size=(1, 500))),
    "500 x 1": lambda: encoded(picture(size=(500, 1))),
    "grey": lambda: encoded(picture("L")),
    "grey with transparency": lambda: encoded(picture("LA")),
    "two colours": lambda: encoded(picture("1")),
    "CMYK": lambda: encoded(picture("CMYK"), "JPEG"),
    "CMYK in TIFF": lambda: encoded(picture("CMYK"), "TIFF"),
    "YCbCr": lambda: encoded(picture("YCbCr"), "JPEG"),
    "LAB": lambda: encoded(picture("LAB"), "TIFF"),
    "palette": lambda: encoded(picture("P")),
    "palette with transparency": with_bytes_transparent,
    "palette with one transparent colour": lambda: encoded(picture("P"), transparency=3),
    "transparency": lambda: encoded(picture("RGBA")),
    "one transparent colour": lambda: encoded(picture(), transparency=(1, 2, 3)),
    "animated PNG": partial(animated, "PNG"),
    "animated WebP": partial(animated, "WEBP"),
    "animated GIF": partial(animated, "GIF"),
    "several pages": partial(animated, "TIFF"),
    "progressive": lambda: encoded(picture(), "JPEG", progressive=True),
    "16 bits": sixteen_bits,
    "another ending": lambda: GOOD["jpg"],
}


@pytest.mark.parametrize("name", LEGAL)
def test_odd_images_that_are_good(name: str, tmp_path: Path) -> None:
    found = read(LEGAL[name](), "png", tmp_path)
    assert found is not None
    assert found.shape == (3, 16, 16)


def test_a_line_that_would_be_scaled_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "line.png"
    path.write_bytes(encoded(picture(size=(1, 60_000))))
    with guarded(tmp_path):
        refusal(
            lambda: decode_image(path, 224, resize_shorter_side=256), "line.png", "too elongated"
        )
        assert decode_image(path, 224).shape == (3, 224, 224)


def make_folder(root: Path, count: int = 4) -> Path:
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            place = root / part / label
            place.mkdir(parents=True)
            for k in range(count):
                (place / f"{k}.png").write_bytes(encoded(picture(seed=k)))
    return root


def load(root: Path) -> Dataset:
    return load_dataset(f"folder:{root}", "train", image_size=16)


def touched(data: Dataset) -> int:
    data.fingerprint()
    return len(data.images)


NAMES = (
    "new\nline.png", "tab\t.png", "quote'\".png", "été.png", "漢字.png", "🦆.png", " .png",
    "%s.png",
    "$(touch attacked).png", "; rm -rf x.png", "a" * 250 + ".png", "UPPER.PNG", "two.dots.png",
    "-rf.png", "~.png", "<script>.png",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_files(name: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    (root / "train" / "cat" / name).write_bytes(encoded(picture(seed=9)))
    with guarded(tmp_path):
        assert touched(load(root)) == 9


@pytest.mark.parametrize("name", ["été", "a b", "%d", "<b>", "1", "-x"])
def test_names_of_classes(name: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    for part in ("train", "val"):
        (root / part / "dog").rename(root / part / name)
    with guarded(tmp_path):
        assert touched(load(root)) == 8


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Other programs cannot write them down."""
    root = make_folder(tmp_path / "set")
    odd = root / "train" / "cat" / os.fsdecode(b"\xff\xfe.png")
    odd.write_bytes(encoded(picture(seed=9)))
    with guarded(tmp_path):
        refusal(lambda: load(root), "not valid UTF-8")
    odd.unlink()
    for part in ("train", "val"):
        (root / part / "dog").rename(root / part / os.fsdecode(b"\xff"))
    with guarded(tmp_path):
        refusal(lambda: load(root), "not valid UTF-8")


def bad_file(root: Path) -> None:
    (root / "train" / "cat" / "9.png").write_bytes(b"no picture")


def pipe(root: Path) -> None:
    os.mkfifo(root / "train" / "cat" / "9.png")


def lost(root: Path) -> None:
    (root / "train" / "cat" / "9.png").symlink_to("nowhere.png")


def to_itself(root: Path) -> None:
    (root / "train" / "cat" / "9.png").symlink_to("9.png")


def device(root: Path) -> None:
    (root / "train" / "cat" / "9.png").symlink_to("/dev/zero")


def no_classes(root: Path) -> None:
    for label in ("cat", "dog"):
        (root / "train" / label).rename(root / f"train-{label}")


def empty_class(root: Path) -> None:
    (root / "train" / "bird").mkdir()


def strange_class(root: Path) -> None:
    (root / "val" / "bird").mkdir()


def file_for_a_part(root: Path) -> None:
    no_classes(root)
    (root / "train").rmdir()
    (root / "train").write_text("not a folder")
    (root / "val").rename(root / "other")


BAD_FOLDERS = (bad_file, pipe, lost, to_itself, device, no_classes, empty_class, strange_class,
               file_for_a_part)  # fmt: skip


@pytest.mark.parametrize("spoil", BAD_FOLDERS)
@pytest.mark.parametrize("image_size", [None, 16])
def test_bad_folders(spoil: Callable[[Path], None], image_size: int | None, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    spoil(root)

    def use() -> None:
        touched(load_dataset(f"folder:{root}", "train+val", image_size=image_size))

    with guarded(tmp_path):
        refusal(use, "set")


def rings(root: Path) -> None:
    for label in ("cat", "dog"):
        for k in range(5):
            (root / "train" / label / f"ring{k}").symlink_to(root / "train" / label)


def folder_like_a_file(root: Path) -> None:
    (root / "train" / "cat" / "x.png").mkdir()


def hidden(root: Path) -> None:
    (root / "train" / "cat" / "._0.png").write_bytes(b"what macOS leaves")
    (root / "train" / "cat" / "Thumbs.db").write_bytes(b"what Windows leaves")


def linked(root: Path) -> None:
    (root / "train" / "cat" / "again").symlink_to(root / "val" / "cat")


ODD_FOLDERS: dict[Callable[[Path], None], int] = {
    rings: 8,
    folder_like_a_file: 8,
    hidden: 8,
    linked: 12,
}


@pytest.mark.parametrize("change", ODD_FOLDERS)
def test_odd_folders_that_are_good(change: Callable[[Path], None], tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    change(root)
    with guarded(tmp_path):
        data = load(root)
        assert touched(data) == ODD_FOLDERS[change]
    assert torch.equal(data.ids, load(root).ids)


CASES = (
    15 * len(FORMATS) + len(REFUSED) + len(LEGAL) + 1 + len(NAMES) + 8 + 2 * len(BAD_FOLDERS)
    + len(ODD_FOLDERS)
)  # fmt: skip
