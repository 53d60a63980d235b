"""Reading of downloaded archives without running code or writing outside the target folder."""

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
from buttress.system.progress import Progress

MAX_MEMBER_BYTES = 192 << 20  # bytes of a file that is read into memory
MAX_UNPACKED_BYTES = 64 << 30  # bytes of all files of an archive that is unpacked
# An archive may unpack to this many bytes, or to a multiple of its own size.
MIN_UNPACKED_LIMIT, MAX_GROWTH = 1 << 30, 20
MAX_FILES = 5_000_000
CHUNK_BYTES = 1 << 20
# A file where a folder is, a folder where a file is, a name that the disk does not take.
NAME_ERRORS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
MAX_SCANNED_BYTES = 8 << 30  # bytes of all files of an archive that is only scanned
ARCHIVE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError,
    LookupError, struct.error, OverflowError,
)  # fmt: skip
# Errors of the system, not of the file: the archive may be intact.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
               errno.EIO, errno.EMFILE, errno.ENFILE)  # fmt: skip


def read_members(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read the named files of an archive; reject it if any member points outside of it."""
    contents: dict[str, bytes] = {}
    total = 0
    with _archive_errors(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            check_member_path(path, member.name)
            total += member.size
            if member.size < 0 or total > MAX_SCANNED_BYTES:  # packed zeros would take hours
                raise DataError(
                    f"{member.name!r} in {path.name} declares {member.size} bytes, which is not "
                    "plausible"
                )
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None or member.name not in names:
                continue
            if member.size > MAX_MEMBER_BYTES:
                raise DataError(f"{member.name} in {path.name} is too large: {member.size} bytes")
            contents[member.name] = stream.read()
    if missing := [name for name in names if name not in contents]:
        raise DataError(f"{path.name} does not contain {', '.join(missing)}")
    return contents


def unpack(path: Path, folder: Path, progress: Progress) -> None:
    """Unpack a tar or zip archive into ``folder``; links and paths outside it are rejected."""
    task = progress.add_task(f"unpack {path.name}", path.stat().st_size)
    total = 0
    max_bytes = min(MAX_UNPACKED_BYTES, max(MIN_UNPACKED_LIMIT, MAX_GROWTH * path.stat().st_size))
    try:
        with _archive_errors(path):
            for number, member in enumerate(_iterate_members(path)):
                check_member_path(path, member.name)
                if number >= MAX_FILES:
                    raise DataError(f"{path.name} contains more than {MAX_FILES:,} files")
                if member.is_link:
                    raise DataError(
                        f"{path.name} contains the link {member.name!r}; links are not unpacked"
                    )
                if member.stream is not None:
                    total += _write_member(member, folder, max_bytes - total, path.name)
                    task.advance(member.packed_bytes)
    finally:
        task.close()


class ArchiveMember(NamedTuple):
    name: str
    is_link: bool
    stream: IO[bytes] | None  # of files
    packed_bytes: float  # about the bytes it takes in the archive


def _iterate_members(path: Path) -> Iterator[ArchiveMember]:
    if zipfile.is_zipfile(path) or path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                if info.is_dir() or is_link:
                    yield ArchiveMember(info.filename, is_link, None, 0)
                    continue
                with archive.open(info) as content:
                    yield ArchiveMember(info.filename, False, content, info.compress_size)
        return
    with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
        position = 0
        for entry in tar:
            if entry.size < 0 or entry.issparse():
                raise DataError(f"{path.name} contains {entry.name!r}, which is not a regular file")
            stream = tar.extractfile(entry) if entry.isfile() else None
            is_link = not (entry.isfile() or entry.isdir())  # devices and pipes too
            yield ArchiveMember(entry.name, is_link, stream, raw.tell() - position)
            position = raw.tell()


def _write_member(member: ArchiveMember, folder: Path, bytes_left: int, archive: str) -> int:
    assert member.stream is not None
    num_bytes = 0
    with _open_for_writing(member.name, folder / member.name, archive) as out:
        # What is written counts: the sizes in an archive may be wrong.
        while piece := member.stream.read(CHUNK_BYTES):
            num_bytes += len(piece)
            if num_bytes > bytes_left:
                raise DataError(
                    f"{archive} unpacks to far more than its own size and was stopped; "
                    "download it again"
                )
            out.write(piece)
    return num_bytes


def _open_for_writing(name: str, path: Path, archive: str) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")
    except OSError as error:
        if error.errno not in NAME_ERRORS:
            raise
        raise DataError(
            f"{archive} contains the file {name[:100]!r}, which cannot be written: {error.strerror}"
        ) from None


def check_member_path(path: Path, name: str) -> None:
    place = PurePosixPath(name)
    is_outside = place.is_absolute() or ".." in place.parts or PureWindowsPath(name).drive
    if is_outside or "\\" in name or "\0" in name:
        raise DataError(
            f"{path.name} contains the path {name!r}, which points outside the "
            "target folder; it was not unpacked"
        )


@contextlib.contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # a password, or a compression that this Python cannot undo
        raise DataError(f"{path.name} cannot be read: {_one_line(error)}") from None
    except ARCHIVE_ERRORS as error:
        # A full disk is not an error of the archive; the cache reports it.
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        kind = ".zip" if path.suffix == ".zip" else ".tar.gz"
        raise DataError(
            f"{path.name} is not a complete {kind} archive: {_one_line(error)}; download it again"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def check_md5(path: Path, md5: str) -> Path:
    """Return ``path`` if its MD5 is the published one, else raise `DataError`."""
    state = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK_BYTES):
            state.update(piece)
    if (digest := state.hexdigest()) != md5:
        raise DataError(f"{path.name} has MD5 {digest}, but {md5} was expected; download it again")
    return path


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler for numpy arrays and plain values only; any other name in a pickle is rejected."""

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
            raise pickle.UnpicklingError(
                f"the pickle refers to {module}.{name}, but only numpy arrays are allowed"
            )
        return self._known[module, name]
