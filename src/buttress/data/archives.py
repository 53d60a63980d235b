"""Archives from the network, read so that nothing in them can run or leave its place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import lzma
import pickle
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple

import numpy as np

from buttress.errors import DataError
from buttress.progress import Progress

LARGEST_MEMBER = 192 << 20  # bytes of a file that is read into memory
LARGEST_TOTAL = 64 << 30  # bytes of all files of an archive that is unpacked
LEAST_ROOM, GROWTH = 1 << 30, 20  # what any archive may unpack to, and else times its own size
MOST_FILES = 5_000_000
PIECE = 1 << 20
# A file where a folder is, a folder where a file is, a name that the disk does not take.
NAMING = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
LARGEST_UNREAD = 8 << 30  # bytes of all files of an archive that is only looked through
BROKEN = (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error, lzma.LZMAError)
BROKEN += (ValueError, LookupError, struct.error, OverflowError)  # type: ignore[assignment]
# Errors that no file brings about: it may be whole all the same.
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
               errno.EIO, errno.EMFILE, errno.ENFILE)  # fmt: skip


def read_members(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The named files of an archive; one member that points outside spoils the whole archive."""
    found: dict[str, bytes] = {}
    total = 0
    with _whole(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            check_place(path, member.name)
            total += member.size
            if member.size < 0 or total > LARGEST_UNREAD:  # packed zeros would take hours to pass
                raise DataError(f"{member.name!r} in {path.name} has {member.size} bytes")
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None or member.name not in names:
                continue
            if member.size > LARGEST_MEMBER:
                raise DataError(f"{member.name} in {path.name} is too large: {member.size} bytes")
            found[member.name] = stream.read()
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{path.name} lacks {', '.join(missing)}")
    return found


def unpack(path: Path, folder: Path, progress: Progress) -> None:
    """The files of a tar or zip archive below ``folder``; a link or a way outside is refused."""
    task = progress.task(f"unpack {path.name}", path.stat().st_size)
    total = 0
    most = min(LARGEST_TOTAL, max(LEAST_ROOM, GROWTH * path.stat().st_size))
    try:
        with _whole(path):
            for number, member in enumerate(_members(path)):
                check_place(path, member.name)
                if number >= MOST_FILES:
                    raise DataError(f"{path.name} holds more than {MOST_FILES:,} files")
                if member.is_link:
                    raise DataError(
                        f"{path.name} holds the link {member.name!r}; links are refused"
                    )
                if member.stream is not None:
                    total += _write(member, folder / member.name, most - total, path.name)
                    task.advance(member.packed)
    finally:
        task.close()


class _Member(NamedTuple):
    name: str
    is_link: bool
    stream: IO[bytes] | None  # of files
    packed: float  # about the bytes it takes in the archive


def _members(path: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(path) or path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                if info.is_dir() or is_link:
                    yield _Member(info.filename, is_link, None, 0)
                    continue
                with archive.open(info) as content:
                    yield _Member(info.filename, False, content, info.compress_size)
        return
    with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
        before = 0
        for entry in tar:
            if entry.size < 0 or entry.issparse():
                raise DataError(f"{path.name} holds {entry.name!r}, which is no plain file")
            stream = tar.extractfile(entry) if entry.isfile() else None
            is_link = not (entry.isfile() or entry.isdir())  # devices and pipes too
            yield _Member(entry.name, is_link, stream, raw.tell() - before)
            before = raw.tell()


def _write(member: _Member, place: Path, left: int, archive: str) -> int:
    assert member.stream is not None
    done = 0
    with _opened(member.name, place, archive) as out:
        # What is written counts: the sizes in an archive may be wrong.
        while piece := member.stream.read(PIECE):
            done += len(piece)
            if done > left:
                raise DataError(
                    f"{archive} unpacks to much more than its own size, too large for this data "
                    "set; it is damaged or another file"
                )
            out.write(piece)
    return done


def _opened(name: str, place: Path, archive: str) -> IO[bytes]:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        return place.open("wb")
    except OSError as error:
        if error.errno not in NAMING:
            raise
        raise DataError(
            f"{archive} holds the file {name[:100]!r}, which cannot be written: {error.strerror}"
        ) from None


def check_place(path: Path, name: str) -> None:
    place = PurePosixPath(name)
    is_outside = place.is_absolute() or ".." in place.parts or PureWindowsPath(name).drive
    if is_outside or "\\" in name or "\0" in name:
        raise DataError(f"{path.name} holds the path {name!r}, which leads outside")


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # a password, or a compression that this Python cannot undo
        raise DataError(f"{path.name} cannot be read: {_line(error)}") from None
    except BROKEN as error:
        # A full disk is no fault of the archive: the cache says what to do about it.
        if isinstance(error, OSError) and error.errno in OF_THE_DISK:
            raise
        kind = ".zip" if path.suffix == ".zip" else ".tar.gz"
        raise DataError(f"{path.name} is not a whole {kind} archive: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def check_md5(path: Path, md5: str) -> Path:
    """The file, if it is the published one."""
    state = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while piece := stream.read(PIECE):
            state.update(piece)
    if (found := state.hexdigest()) != md5:
        raise DataError(
            f"{path.name} has the MD5 {found} in place of {md5}; it is damaged or another file"
        )
    return path


class ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays and plain values; any other name in a pickle is refused."""

    # What numpy itself puts into a pickle: the functions have moved between its versions.
    _rebuild, _scalar = np.empty(0).__reduce__()[0], np.int64(0).__reduce__()[0]
    _buffer = np.empty(0).__reduce_ex__(5)[0]
    _known = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _rebuild,
        ("numpy._core.multiarray", "_reconstruct"): _rebuild,
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy._core.multiarray", "scalar"): _scalar,
        ("numpy.core.numeric", "_frombuffer"): _buffer,
        ("numpy._core.numeric", "_frombuffer"): _buffer,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array")
        return self._known[module, name]
