"""Ctrl-C at moments that cannot be left halfway, or that might never end."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS_TO_END = 30.0
STDERR = 2


@contextmanager
def held() -> Iterator[None]:
    """A Ctrl-C in this block is answered behind it.

    For libraries that change something global for a moment and leave it changed if interrupted.
    """
    came: list[tuple[int, FrameType | None]] = []
    before: Handler | int | None = None
    try:
        with _answering(lambda *given: came.append(given)) as before:
            yield
    finally:
        if came and callable(before):
            before(*came[-1])


@contextmanager
def insisted() -> Iterator[None]:
    """A Ctrl-C in this block ends it within half a minute, or the process with what it waited for.

    For processes that wait for each other: an interrupt between two of their messages may leave
    one waiting for ever, where no Python runs that could notice.
    """

    def interrupt(*_: object) -> None:
        faulthandler.dump_traceback_later(SECONDS_TO_END, exit=True, file=STDERR)
        raise KeyboardInterrupt

    try:
        with _answering(interrupt):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


Handler = Callable[[int, FrameType | None], object]


@contextmanager
def _answering(handler: Handler) -> Iterator[Handler | int | None]:
    """Answers Ctrl-C by ``handler``, where it is answered at all; gives who answered before."""
    before = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and callable(before)
    if not is_ours:  # signals are not this thread's matter, or Ctrl-C is to be ignored
        yield None
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield before
    finally:
        signal.signal(signal.SIGINT, before)
