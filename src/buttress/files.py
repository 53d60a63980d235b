"""Files that are either whole or absent: written to a temporary name, checked when read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFile
from buttress.spec import digest

CHECKSUM = "sha256"
LONGEST_NAME = 200  # bytes, with room for an ending


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path`` that takes its place when the block succeeds.

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


def file_name(text: str) -> str:
    """Any text as the name of a file that stays in its folder; a harmless one is left as it is."""
    plain = re.sub(r"[/\\\x00-\x1f\x7f]", "_", text).lstrip(".")
    return plain.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore") or "unnamed"


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside ``path`` that takes its place when the block succeeds.

    On an error or an interruption the temporary folder is removed and what was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    old = made.with_suffix(".old.part")  # a folder with files in it cannot be renamed over
    try:
        yield made
        made.chmod(0o755)
        if path.exists():
            path.rename(old)
        try:
            made.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if path.exists():  # else the old folder is all there is
            shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        # Half a character, which a damaged record can bring along, must not stop a whole page.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object that carries the hash of its own content."""
    body = json.loads(json.dumps(content, allow_nan=False))
    write_text(path, json.dumps({**body, CHECKSUM: digest(body)}, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads what `write_json` wrote; raises `CorruptFile` if a single character changed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(content, dict) and content.pop(CHECKSUM, None) == digest(content)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, not finite, or far too deep
        raise CorruptFile(f"{path} is truncated or not JSON") from None
    if not whole:
        raise CorruptFile(f"{path} does not match its own checksum")
    return dict(content)


def discard_leftovers(folder: Path) -> None:
    """Removes temporary files and folders that a killed process left behind."""
    for leftover in list(folder.rglob(".*.part")):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
