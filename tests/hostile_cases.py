"""What the tests of hostile inputs share: guards around a case, and ways to damage a file."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

from buttress.errors import ButtressError

T = TypeVar("T")

SECONDS = 30  # a case that takes longer hangs
GROWTH = 700 << 10  # KiB that a case may add to the most memory the process ever had


class Hanging(BaseException):
    """No `except Exception` takes it for an error of the input."""


@contextlib.contextmanager
def guarded(surroundings: Path, inside: Path | None = None) -> Iterator[None]:
    """Fails a case that hangs, takes much memory, or changes a file outside of ``inside``."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hanging(f"still busy after {SECONDS} s")

    before, peak = snapshot(surroundings, inside), most_memory()
    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert snapshot(surroundings, inside) == before, "a file outside of the output changed"
    assert most_memory() - peak < GROWTH, f"took {most_memory() - peak} KiB"


def snapshot(folder: Path, inside: Path | None = None) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder but those ``inside``."""
    found = {}
    for path in folder.rglob("*"):
        if inside is not None and (path == inside or inside in path.parents):
            continue
        status = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        found[str(path)] = (status.st_size, status.st_mtime_ns) if is_file else (0, 0)
    return found


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def refusal(call: Callable[[], object], *words: str) -> str:
    """The message with which a call refuses; it must be an error of ours, on one line."""
    with pytest.raises(ButtressError) as caught:
        call()
    return check_text(str(caught.value), words)


def unless_refused(call: Callable[[], T], *words: str) -> T | None:
    """What a call gives, or None if it refuses as it should."""
    try:
        return call()
    except ButtressError as error:
        text = str(error)
    check_text(text, words)
    return None


def check_text(text: str, words: Sequence[str]) -> str:
    assert text.strip()
    assert "\n" not in text, text
    assert "bug" not in text, text
    assert len(text) < 2000
    for word in words:
        assert word in text, text
    return text


def cut(content: bytes, share: float) -> bytes:
    return content[: int(share * len(content))]


def flipped(content: bytes, seed: int, count: int = 1) -> bytes:
    """The content with some bits turned over, the same ones for the same seed."""
    source, changed = random.Random(seed), bytearray(content)
    for _ in range(count):
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def flipped_in_front(content: bytes, seed: int, count: int = 3) -> bytes:
    """The same in the first bytes, which often say what the others mean."""
    return flipped(content[:4000], seed, count) + content[4000:]


CUTS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
