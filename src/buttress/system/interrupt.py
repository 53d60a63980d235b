"""Handling of Ctrl-C and SIGTERM: deferred, with a time limit, or both alike."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SHUTDOWN_SECONDS = 30.0
STDERR_FD = 2


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block.

    For libraries that change something global for a moment and leave it changed if interrupted.
    """
    pending: list[tuple[int, FrameType | None]] = []
    previous_handler: SignalHandler | int | None = None
    try:
        with _sigint_handler(lambda *signal_args: pending.append(signal_args)) as previous_handler:
            yield
    finally:
        if pending and callable(previous_handler):
            previous_handler(*pending[-1])


@contextmanager
def force_exit_on_interrupt() -> Iterator[None]:
    """End the block within half a minute after Ctrl-C, or else the process.

    For processes that wait for each other: an interrupt between two of their messages may leave
    one waiting for ever, where no Python runs that could notice.
    """

    def interrupt(*_: object) -> None:
        faulthandler.dump_traceback_later(SHUTDOWN_SECONDS, exit=True, file=STDERR_FD)
        raise KeyboardInterrupt

    try:
        with _sigint_handler(interrupt):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that locks are released."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only it can handle signals
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


SignalHandler = Callable[[int, FrameType | None], object]


@contextmanager
def _sigint_handler(handler: SignalHandler) -> Iterator[SignalHandler | int | None]:
    """Install a handler of Ctrl-C, unless it is ignored; return the previous one."""
    previous_handler = signal.getsignal(signal.SIGINT)
    can_handle = threading.current_thread() is threading.main_thread() and callable(
        previous_handler
    )
    if not can_handle:  # not the main thread, or Ctrl-C is ignored
        yield None
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield previous_handler
    finally:
        signal.signal(signal.SIGINT, previous_handler)
