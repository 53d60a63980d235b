"""Atomic writes, JSON files with checksums, and the times in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFileError, UserError

if sys.platform != "win32":
    import fcntl

CHECKSUM_KEY = "sha256"
MAX_NAME_BYTES = 200  # bytes, with room for an ending
ABANDONED_SECONDS = 86_400.0  # age of a leftover where the file system has no locks


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block succeeds.

    The content reaches the disk before the rename, and the rename before the end, so that a crash
    leaves the old file or the new one, never a part. On an error the temporary file is removed and
    the old one stays. What killed processes left of the same file is removed.
    """
    create_folder(path.parent)
    _remove_leftovers(_temporary_files_of(path))
    with _locked_temporary(path, is_folder=False) as temporary:
        yield temporary
        sync_to_disk(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        sync_to_disk(path.parent)


def create_folder(path: Path) -> None:
    """Create a folder and its parents; their names are on the disk when it returns."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise _unusable_folder(path, error) from None
    for folder in missing:
        sync_to_disk(folder.parent)


def sync_to_disk(path: Path) -> None:
    """Write a file, or the names in a folder, from the cache of the system to the disk."""
    if sys.platform == "win32" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder in ``parent`` and remove it, and those that killed processes left."""
    create_folder(parent)
    _remove_leftovers(_temporary_files_of(parent / name))
    with _locked_temporary(parent / name, is_folder=True) as temporary:
        yield temporary


@contextlib.contextmanager
def _locked_temporary(path: Path, *, is_folder: bool) -> Iterator[Path]:
    """Yield a new temporary file or folder that others leave alone while this process lives."""
    while True:
        temporary = _create_temporary(path, is_folder=is_folder)
        with contextlib.suppress(FileNotFoundError):  # removed before it was locked
            handle = _lock_leftover(temporary, wait=True)
            if handle is None or temporary.exists():
                break
            os.close(handle)
    try:
        yield temporary
    finally:
        if is_folder:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _create_temporary(path: Path, *, is_folder: bool) -> Path:
    prefix, suffix = f".{path.name}.", ".part"
    try:
        if is_folder:
            return Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=suffix))
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=suffix)
    except FileNotFoundError as error:
        raise _unusable_folder(path.parent, error) from None
    os.close(handle)
    return Path(name)


def _unusable_folder(folder: Path, error: OSError) -> UserError:
    """The error where no file can be created: below a deleted folder, in /proc ..."""
    return UserError(f"cannot write to {folder}: {error.strerror}; choose another folder")


def _lock_leftover(path: Path, *, wait: bool) -> int | None:
    """Lock a temporary file; the system unlocks it when its process ends, however it ends.

    Returns:
        The handle to close, or None where the file system has no locks.

    Raises:
        BlockingIOError: if another process has locked it.
    """
    if sys.platform == "win32":
        return None
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        os.close(handle)
        return None
    return handle


def safe_file_name(text: str) -> str:
    """Convert any text to a safe file name; safe ones are unchanged."""
    cleaned = re.sub(r"[/\\\x00-\x1f\x7f]", "_", text).lstrip(".")
    return cleaned.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore") or "unnamed"


@contextlib.contextmanager
def atomic_write_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path`` that takes its place when the block succeeds.

    On an error or an interruption the temporary folder is removed and what was there stays.
    """
    create_folder(path.parent)
    with _locked_temporary(path, is_folder=True) as temporary:
        backup = temporary.with_suffix(".old.part")  # a filled folder cannot be renamed over
        yield temporary
        temporary.chmod(0o755)
        for entry in (*temporary.rglob("*"), temporary):
            sync_to_disk(entry)
        if path.exists():
            path.rename(backup)
        try:
            temporary.rename(path)
        except BaseException:
            if backup.exists() and not path.exists():
                backup.rename(path)
            raise
        sync_to_disk(path.parent)
        # Also what killed processes left, which until now may have been all there was.
        _remove_leftovers(_temporary_files_of(path))


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        _write_any_text(temporary, text)


def write_derived_text(path: Path, text: str) -> None:
    """Write atomically what can be made again: without waiting for the disk, for many files."""
    create_folder(path.parent)
    with _locked_temporary(path, is_folder=False) as temporary:
        _write_any_text(temporary, text)
        temporary.chmod(0o644)
        temporary.replace(path)


def _write_any_text(path: Path, text: str) -> None:
    # Half a character, which a damaged record can bring along, must not stop a whole page.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def create_file(path: Path, text: str) -> bool:
    """Create a file with its content in one step; False if it exists."""
    create_folder(path.parent)
    _remove_leftovers(_temporary_files_of(path))
    if path.exists():
        return False
    with _locked_temporary(path, is_folder=False) as temporary:
        temporary.write_text(text, encoding="utf-8")
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # no hard links on this file system: a reader may see it empty
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                return False
    return True


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with the hash of its content."""
    body = json.loads(json.dumps(content, allow_nan=False))
    write_text(path, json.dumps({**body, CHECKSUM_KEY: digest(body)}, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_json`; raise `CorruptFileError` if it was changed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_intact = isinstance(content, dict) and content.pop(CHECKSUM_KEY, None) == digest(content)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, not finite, or far too deep
        raise CorruptFileError(f"{path} is truncated or is not valid JSON") from None
    if not is_intact:
        raise CorruptFileError(f"{path} is corrupt: its checksum does not match its content")
    return dict(content)


def remove_temporary_files(folder: Path, *, is_recursive: bool = True) -> None:
    """Remove temporary files and folders of killed processes; those in use are left alone."""
    _remove_leftovers((folder.rglob if is_recursive else folder.glob)(".*.part"))


def _temporary_files_of(path: Path) -> list[Path]:
    """Temporary files and folders beside ``path`` that were to take its place."""
    prefix = f".{path.name}."
    with os.scandir(path.parent) as entries:
        names = [e.name for e in entries if e.name.startswith(prefix)]
    return [path.parent / name for name in names if name.endswith(".part")]


def _remove_leftovers(paths: Iterable[Path]) -> None:
    for path in list(paths):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            handle = _lock_leftover(path, wait=False)
            if handle is None and time.time() - path.stat().st_mtime < ABANDONED_SECONDS:
                continue  # without locks only its age tells that nobody writes it
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            if handle is not None:
                os.close(handle)


def digest(content: object) -> str:
    """The SHA-256 of a JSON value, the same for every order of its keys."""
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(body.encode()).hexdigest()


def cache_dir() -> Path:
    """``$BUTTRESS_CACHE``, else ``$XDG_CACHE_HOME/buttress``, else ``~/.cache/buttress``."""
    if override := os.environ.get("BUTTRESS_CACHE"):
        return Path(override).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "buttress"


def utc_timestamp() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
