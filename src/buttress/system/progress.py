"""Progress interface of the library; the command line implements it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
OnProgress = Callable[[float], None]  # called with the fraction of the work that is done


class ProgressTask(Protocol):
    """A task with a known total."""

    def advance(self, amount: float = 1.0, note: str = "") -> None: ...

    def resume(self, amount: float) -> None:
        """Count what was done before: it says nothing about the time that the rest takes."""

    def close(self) -> None: ...


class Progress(Protocol):
    """Shows tasks and log lines."""

    def add_task(self, description: str, total: float) -> ProgressTask: ...

    def log(self, text: str) -> None: ...


class _SilentTask:
    def advance(self, amount: float = 1.0, note: str = "") -> None:
        pass

    def resume(self, amount: float) -> None:
        pass

    def close(self) -> None:
        pass


class SilentProgress:
    """Shows nothing: the default of library calls."""

    def add_task(self, description: str, total: float) -> ProgressTask:
        return _SilentTask()

    def log(self, text: str) -> None:
        pass


def track(
    progress: Progress,
    description: str,
    items: Collection[T],
    note: Callable[[T], str] | None = None,
) -> Iterator[T]:
    """Yield the items; a task advances, with a note, when one is done and closes after all."""
    task = progress.add_task(description, len(items))
    try:
        for item in items:
            yield item
            task.advance(1, note="" if note is None else note(item))
    finally:
        task.close()


def fraction_callback(task: ProgressTask, total: float) -> Callable[[float], None]:
    """Callback that advances a task by the fraction done."""
    advanced = 0.0

    def on_progress(fraction: float) -> None:
        nonlocal advanced
        task.advance(fraction * total - advanced)
        advanced = fraction * total

    return on_progress


def scale_progress(on_progress: OnProgress | None, start: float, size: float) -> OnProgress | None:
    """Reports ``start + size * done`` for a part of work; at most 1, never less than before."""
    if on_progress is None:
        return None
    reached = 0.0

    def report(done: float) -> None:
        nonlocal reached
        reached = max(reached, min(1.0, start + size * done))
        on_progress(reached)

    return report
