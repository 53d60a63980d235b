"""How long work says how far it is. The library speaks to this seam; the command line shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ProgressTask(Protocol):
    """One piece of work with a known length."""

    def advance(self, amount: float = 1.0, note: str = "") -> None: ...

    def close(self) -> None: ...


class Progress(Protocol):
    """Where tasks are shown."""

    def add_task(self, description: str, total: float) -> ProgressTask: ...

    def log(self, text: str) -> None: ...


class _SilentTask:
    def advance(self, amount: float = 1.0, note: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class SilentProgress:
    """Shows nothing: the default of library calls."""

    def add_task(self, description: str, total: float) -> ProgressTask:
        return _SilentTask()

    def log(self, text: str) -> None:
        pass


def fraction_callback(task: ProgressTask, total: float) -> Callable[[float], None]:
    """Advances a task from the share of its work that is done."""
    advanced = 0.0

    def on_progress(fraction: float) -> None:
        nonlocal advanced
        task.advance(fraction * total - advanced)
        advanced = fraction * total

    return on_progress
