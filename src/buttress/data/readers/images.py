"""Images that stay encoded in files and are decoded on demand."""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from buttress.data.pixels import MemoryPixels, PixelSource, iterate_indices
from buttress.errors import DataError
from buttress.system.cpu import available_cpus
from buttress.system.progress import Progress

MAX_MEMORY_BYTES = 1 << 30  # bytes of uint8 pixels
DECODE_THREADS = min(8, available_cpus())  # Pillow decodes without holding the interpreter
MAX_IMAGE_PIXELS = 1 << 26  # pixels, in a file or on the way to its middle
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, LookupError, TypeError,
          OverflowError, zlib.error, Image.DecompressionBombError,
          Image.DecompressionBombWarning)  # fmt: skip


class UnreadableImages(DataError):
    """Error for unreadable images: names the first and counts all."""

    def __init__(self, reasons: list[str], images: int) -> None:
        more = f"{len(reasons)} of {images} images cannot be read, first: "
        super().__init__((more if len(reasons) > 1 else "") + reasons[0])
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[DataError], tuple[str]]:
        return DataError, (str(self),)  # as another process gets it


class EncodedPixels(ABC):
    """Encoded images by position, each cut to a square of ``size`` pixels."""

    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, self.size, self.size

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, row: int) -> NDArray[np.uint8]:
        """One image as (3, size, size); called from several threads at once."""

    @abstractmethod
    def select(self, indices: Tensor) -> PixelSource: ...

    @abstractmethod
    def fingerprint_bytes(self) -> Iterator[bytes]: ...

    def take(self, indices: Tensor) -> Tensor:
        out = np.empty((len(indices), 3, self.size, self.size), dtype=np.uint8)
        errors = []
        with ThreadPoolExecutor(DECODE_THREADS) as pool:
            for row, image in enumerate(pool.map(self._read_or_error, indices.tolist())):
                if isinstance(image, DataError):
                    errors.append(str(image))
                else:
                    out[row] = image
        if errors:
            raise UnreadableImages(errors, len(indices))
        return torch.from_numpy(out)

    def _read_or_error(self, row: int) -> NDArray[np.uint8] | DataError:
        try:
            return self.read(row)
        except DataError as error:
            return error

    def load_into_memory(self, progress: Progress) -> PixelSource:
        """In memory if all of it takes at most `MAX_MEMORY_BYTES`, else left where it is."""
        if len(self) * 3 * self.size**2 > MAX_MEMORY_BYTES:
            return self
        out = torch.empty(self.shape, dtype=torch.uint8)
        task = progress.add_task("decode images", len(self))
        errors: list[str] = []
        try:
            for rows in iterate_indices(self, 256):
                try:
                    out[rows] = self.take(rows)
                except UnreadableImages as error:  # continue, to report all of them at once
                    errors += error.reasons
                task.advance(len(rows))
        finally:
            task.close()
        if errors:
            raise UnreadableImages(errors, len(self))
        return MemoryPixels(out)


def decode_image(
    source: Path | IO[bytes],
    size: int,
    resize_shorter_side: int | None = None,
    name: str = "",
    *,
    apply_exif_rotation: bool = False,
) -> NDArray[np.uint8]:
    """(3, size, size): the shorter side becomes ``resize_shorter_side``, then the middle is cut.

    ``resize_shorter_side`` is ``size`` if left out; 256 with a size of 224 is what ImageNet is
    evaluated with. ``apply_exif_rotation`` turns a photograph as its camera noted it.
    """
    try:
        with open_image(source) as image:
            rgb = to_rgb(ImageOps.exif_transpose(image) if apply_exif_rotation else image)
        if resize_shorter_side is not None and resize_shorter_side != size:
            rgb = resize_and_center_crop(rgb, size, resize_shorter_side)
    except DECODE_ERRORS as error:
        raise DataError(unreadable_message(name or str(source), error)) from None
    if rgb.size != (size, size):
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(rgb).transpose(2, 0, 1)


def to_rgb(image: Image.Image) -> Image.Image:
    """Three channels of 8 bits: gray is repeated, alpha dropped, 16 bits are scaled down."""
    if image.mode.startswith("I;16"):
        deep = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode == "F" or image.mode.startswith("I"):
        raise ValueError(f"it has more than 16 bits per channel (mode {image.mode})")
    image.info.pop("transparency", None)  # it has a color all the same, and Pillow would warn
    return image.convert("RGB")


def resize_and_center_crop(rgb: Image.Image, size: int, resize_shorter_side: int) -> Image.Image:
    """As torchvision's ``Resize(shorter)`` and ``CenterCrop(size)`` do it, to the last bit."""
    width, height = rgb.size
    short_side = min(width, height)
    width, height = (
        resize_shorter_side * width // short_side,
        resize_shorter_side * height // short_side,
    )
    if width * height > MAX_IMAGE_PIXELS:
        raise ValueError(f"the image is too elongated: {rgb.size[0]} x {rgb.size[1]} pixels")
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = rgb.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def read_image_size(source: Path | IO[bytes], name: str = "") -> tuple[int, int]:
    """Width and height, without decoding."""
    try:
        with open_image(source) as image:
            return image.size
    except DECODE_ERRORS as error:
        raise DataError(unreadable_message(name or str(source), error)) from None


def open_image(source: Path | IO[bytes]) -> Image.Image:
    """Open an image lazily, if it is a regular file and not too large to decode."""
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise ValueError("it is not a regular file")  # reading a pipe would block
    image: Image.Image = Image.open(source)
    if image.width * image.height > MAX_IMAGE_PIXELS:
        image.close()
        raise ValueError(
            f"the image has {image.width} x {image.height} pixels, more than the limit"
        )
    return image


def unreadable_message(name: str, error: Exception) -> str:
    expected = f"{name} is not a readable 8- or 16-bit image"
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{expected}: {reason}; repair or remove it"
