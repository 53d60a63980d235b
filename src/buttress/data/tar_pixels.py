"""Images inside tar files that are not unpacked: an index, read once, says where each one lies."""

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

from buttress.data.archives import BROKEN
from buttress.data.cache import cache_dir
from buttress.data.folder import ENDINGS
from buttress.data.pixels import ChannelStats, channel_stats
from buttress.data.streamed import StreamedPixels, read_image
from buttress.errors import CorruptFile, DataError
from buttress.files import read_json, write_json
from buttress.streams import seed_of

LABEL = ".cls"


@dataclass(frozen=True, eq=False)
class TarPixels(StreamedPixels):
    """Images in ``shards`` under ``root``, each cut to a square of ``size`` pixels."""

    root: Path
    shards: tuple[str, ...]
    where: Tensor  # (N, 3) number of the shard, first byte, number of bytes
    size: int

    def __len__(self) -> int:
        return len(self.where)

    def read(self, row: int) -> NDArray[np.uint8]:
        path, content = self.encoded(row)
        return read_image(io.BytesIO(content), self.size, name=path)

    def encoded(self, row: int) -> tuple[str, bytes]:
        """The bytes of an image, with a name for it."""
        shard, start, length = self.where[row].tolist()
        path = self.root / self.shards[shard]
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                return f"the image at byte {start} of {path}", stream.read(length)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None

    def select(self, indices: Tensor) -> TarPixels:
        return replace(self, where=self.where[indices])

    def contents(self) -> Iterator[bytes]:
        for shard, start, length in self.where.tolist():
            yield f"{self.shards[shard]}\0{start}\0{length}\n".encode()


@lru_cache(maxsize=8)
def tar_stats(
    root: Path, shards: tuple[str, ...], where: tuple[tuple[int, ...], ...], size: int
) -> ChannelStats:
    return channel_stats(TarPixels(root, shards, torch.tensor(where), size))


class Member(NamedTuple):
    """One image of a shard."""

    name: str
    start: int
    length: int
    label: str  # the text of its .cls file, or the name of its class folder


def read_index(path: Path, *, with_cls: bool) -> list[Member]:
    """The images of a shard; kept in the cache until the shard changes."""
    status = path.stat()
    key = seed_of(str(path.resolve()), status.st_size, status.st_mtime_ns, int(with_cls))
    kept = cache_dir() / "shards" / f"{key:016x}.json"
    with contextlib.suppress(CorruptFile, OSError, KeyError, TypeError):
        return [Member(*entry) for entry in read_json(kept)["images"]]
    members = scan_samples(path) if with_cls else scan_folders(path)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        write_json(kept, {"images": members})
    return members


def scan_samples(path: Path) -> list[Member]:
    """A shard of webdataset: files that share a name up to its first dot are one sample."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    with opened(path) as archive:
        for member in files_in(archive, path):
            place = PurePosixPath(member.name)
            key = str(place.parent / place.name.partition(".")[0])
            if place.name.lower().endswith(ENDINGS):
                if key in images:
                    raise DataError(f"{path} must hold one image for each key, but {key} has two")
                images[key] = member
            elif place.name.endswith(LABEL):
                stream = archive.extractfile(member)
                labels[key] = stream.read(32).decode("ascii", "replace").strip() if stream else ""
    for key in images:
        if not labels.get(key, "").isdecimal():
            found = repr(labels[key]) if key in labels else "none"
            raise DataError(
                f"{path} must hold a class number in {key}{LABEL}, but there is {found}"
            )
    return [Member(m.name, m.offset_data, m.size, labels[key]) for key, m in images.items()]


def scan_folders(path: Path) -> list[Member]:
    """A tar file with class folders, or the images of the class that the file is named for."""
    with opened(path) as archive:
        images = [m for m in files_in(archive, path) if m.name.lower().endswith(ENDINGS)]
    folders = [PurePosixPath(m.name).parent.name or path.stem for m in images]
    return [
        Member(m.name, m.offset_data, m.size, folder)
        for m, folder in zip(images, folders, strict=True)
    ]


def files_in(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        if member.size < 0:  # read again and again
            raise DataError(f"{path} holds {member.name!r} with {member.size} bytes")
        if member.isfile() and not PurePosixPath(member.name).name.startswith("."):
            if member.issparse():
                raise DataError(f"{path} holds {member.name} with holes in it; pack it again")
            yield member


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except (*BROKEN, ValueError, LookupError, RecursionError) as error:
        raise DataError(
            f"{path} must be a whole tar file without compression, but: {error}"
        ) from None
