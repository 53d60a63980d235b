"""Images inside tar files, read through a cached index without unpacking."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.archives import ARCHIVE_ERRORS
from buttress.data.pixels import ChannelStats, channel_stats
from buttress.data.readers.folder import IMAGE_SUFFIXES
from buttress.data.readers.images import EncodedPixels, decode_image
from buttress.errors import CorruptFileError, DataError
from buttress.system.files import cache_dir, read_json, write_json
from buttress.system.rng import derive_seed

LABEL_SUFFIX = ".cls"


@dataclass(frozen=True, eq=False)
class TarPixels(EncodedPixels):
    """Images in ``shards`` under ``root``, each cut to a square of ``size`` pixels."""

    root: Path
    shards: tuple[str, ...]
    locations: Tensor  # (N, 3) number of the shard, first byte, number of bytes
    size: int

    def __len__(self) -> int:
        return len(self.locations)

    def read(self, row: int) -> NDArray[np.uint8]:
        path, content = self.read_encoded(row)
        return decode_image(io.BytesIO(content), self.size, name=path)

    def read_encoded(self, row: int) -> tuple[str, bytes]:
        """The bytes of an image, with a name for it."""
        shard, start, length = self.locations[row].tolist()
        path = self.root / self.shards[shard]
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                return f"the image at byte {start} of {path}", stream.read(length)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None

    def select(self, indices: Tensor) -> TarPixels:
        return replace(self, locations=self.locations[indices])

    def fingerprint_bytes(self) -> Iterator[bytes]:
        for shard, start, length in self.locations.tolist():
            yield f"{self.shards[shard]}\0{start}\0{length}\n".encode()


@lru_cache(maxsize=8)
def tar_stats(
    root: Path, shards: tuple[str, ...], where: tuple[tuple[int, ...], ...], size: int
) -> ChannelStats:
    return channel_stats(TarPixels(root, shards, torch.tensor(where), size))


class TarImage(NamedTuple):
    """One image of a shard."""

    name: str
    start: int
    length: int
    label: str  # the text of its .cls file, or the name of its class folder


def read_tar_index(path: Path, *, has_label_files: bool) -> list[TarImage]:
    """The images of a shard; kept in the cache until the shard changes."""
    status = path.stat()
    key = derive_seed(str(path.resolve()), status.st_size, status.st_mtime_ns, int(has_label_files))
    cache_file = cache_dir() / "shards" / f"{key:016x}.json"
    with contextlib.suppress(CorruptFileError, OSError, KeyError, TypeError):
        return [TarImage(*entry) for entry in read_json(cache_file)["images"]]
    members = scan_webdataset(path) if has_label_files else scan_class_folders(path)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        write_json(cache_file, {"images": members})
    return members


def scan_webdataset(path: Path) -> list[TarImage]:
    """A shard of webdataset: files that share a name up to its first dot are one sample."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    with open_tar(path) as archive:
        for member in iterate_files(archive, path):
            place = PurePosixPath(member.name)
            key = str(place.parent / place.name.partition(".")[0])
            if place.name.lower().endswith(IMAGE_SUFFIXES):
                if key in images:
                    raise DataError(
                        f"{path} must contain one image for each key, but {key} has two"
                    )
                images[key] = member
            elif place.name.endswith(LABEL_SUFFIX):
                stream = archive.extractfile(member)
                labels[key] = stream.read(32).decode("ascii", "replace").strip() if stream else ""
    for key in images:
        if not labels.get(key, "").isdecimal():
            label_phrase = repr(labels[key]) if key in labels else "none"
            raise DataError(
                f"{path} must contain a class number in {key}{LABEL_SUFFIX}, but there is "
                f"{label_phrase}"
            )
    return [TarImage(m.name, m.offset_data, m.size, labels[key]) for key, m in images.items()]


def scan_class_folders(path: Path) -> list[TarImage]:
    """A tar file with class folders, or the images of the class that the file is named for."""
    with open_tar(path) as archive:
        images = [
            m for m in iterate_files(archive, path) if m.name.lower().endswith(IMAGE_SUFFIXES)
        ]
    folders = [PurePosixPath(m.name).parent.name or path.stem for m in images]
    return [
        TarImage(m.name, m.offset_data, m.size, folder)
        for m, folder in zip(images, folders, strict=True)
    ]


def iterate_files(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        if member.size < 0:  # read again and again
            raise DataError(f"{path} contains {member.name!r} with {member.size} bytes")
        if member.isfile() and not PurePosixPath(member.name).name.startswith("."):
            if member.issparse():
                raise DataError(
                    f"{path} contains the sparse file {member.name}; repack it "
                    "without sparse entries"
                )
            yield member


@contextlib.contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except (*ARCHIVE_ERRORS, RecursionError) as error:  # type: ignore[misc]
        raise DataError(f"{path} must be a complete, uncompressed tar file: {error}") from None
