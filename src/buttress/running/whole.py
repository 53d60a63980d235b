"""One progress bar for all runs, moved by the parts that each run reports."""

from __future__ import annotations

from collections.abc import Sequence

from buttress.progress import Progress, Task
from buttress.study.tasks import units_of
from buttress.study.work import Work


class Whole:
    """The bar, and how much of each run it still has to move."""

    def __init__(self, works: Sequence[Work], progress: Progress) -> None:
        self.works, self.progress = works, progress
        self.units = [units_of(work) for work in works]
        self.left = [dict(units) for units in self.units]
        total = sum(sum(units.values()) for units in self.left)
        self.bar = progress.task(f"all {len(works)} runs", total)

    def of(self, index: int) -> Share:
        return Share(self, index)

    def part(self, index: int, kind: str, share: float) -> None:
        """Moves the bar by a share of one kind of a run's work."""
        units = self.left[index]
        step = min(units.get(kind, 0.0), share * self.units[index].get(kind, 0.0))
        if step > 0:
            units[kind] -= step
            self.bar.advance(step)

    def done(self, index: int) -> None:
        self.bar.advance(sum(self.left[index].values()))
        self.left[index] = {}

    def close(self) -> None:
        self.bar.close()


class Share:
    """The progress of one run: its own bar, and its part of the whole."""

    def __init__(self, whole: Whole, index: int) -> None:
        self.whole, self.index = whole, index

    def task(self, description: str, total: float) -> Task:
        label = f"{self.whole.works[self.index].label()}: {description}"
        shown = self.whole.progress.task(label, total)
        return SharedTask(self, shown, description, max(total, 1e-9))

    def log(self, text: str) -> None:
        self.whole.progress.log(text)


class SharedTask:
    def __init__(self, share: Share, shown: Task, kind: str, total: float) -> None:
        self.share, self.shown, self.kind, self.total = share, shown, kind, total

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.shown.advance(amount, note)
        if amount:
            self.share.whole.part(self.share.index, self.kind, amount / self.total)

    def close(self) -> None:
        self.shown.close()
