"""How long work says how far it is. The library speaks to this seam; the command line shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Task(Protocol):
    """One piece of work with a known length."""

    def advance(self, amount: float = 1.0, note: str = "") -> None: ...

    def close(self) -> None: ...


class Progress(Protocol):
    """Where tasks are shown."""

    def task(self, description: str, total: float) -> Task: ...

    def log(self, text: str) -> None: ...


class _SilentTask:
    def advance(self, amount: float = 1.0, note: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class Silent:
    """Shows nothing: the default of library calls."""

    def task(self, description: str, total: float) -> Task:
        return _SilentTask()

    def log(self, text: str) -> None:
        pass


def by_share(task: Task, total: float) -> Callable[[float], None]:
    """Advances a task from the share of its work that is done."""
    done = 0.0

    def told(share: float) -> None:
        nonlocal done
        task.advance(share * total - done)
        done = share * total

    return told
