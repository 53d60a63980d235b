"""Atomic writes, and JSON files with checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFileError

CHECKSUM_KEY = "sha256"
MAX_NAME_BYTES = 200  # bytes, with room for an ending


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block succeeds.

    The content reaches the disk before the rename, so that a crash leaves the old file or the new
    one, never a part. On an error the temporary file is removed and the old one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def safe_file_name(text: str) -> str:
    """Convert any text to a safe file name; safe ones are unchanged."""
    cleaned = re.sub(r"[/\\\x00-\x1f\x7f]", "_", text).lstrip(".")
    return cleaned.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore") or "unnamed"


@contextlib.contextmanager
def atomic_write_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path`` that takes its place when the block succeeds.

    On an error or an interruption the temporary folder is removed and what was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    backup = temporary.with_suffix(".old.part")  # a folder with files in it cannot be renamed over
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            path.rename(backup)
        try:
            temporary.rename(path)
        except BaseException:
            if backup.exists() and not path.exists():
                backup.rename(path)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():  # else the old folder is all there is
            shutil.rmtree(backup, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        # Half a character, which a damaged record can bring along, must not stop a whole page.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


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


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files and folders of killed processes."""
    for leftover in list(folder.rglob(".*.part")):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def digest(content: object) -> str:
    """The SHA-256 of a JSON value, the same for every order of its keys."""
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(body.encode()).hexdigest()
