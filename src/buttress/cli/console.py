"""What the command line shows: results on stdout, progress and logs on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import TaskID as BarID

from buttress.progress import Progress, Task

stderr = Console(stderr=True, highlight=False)
PLAIN_EVERY = 5.0  # seconds between lines where there is no terminal


class _BarTask:
    def __init__(self, bars: Bars, bar: BarID) -> None:
        self.bars, self.bar = bars, bar

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.bars.advance(self.bar, amount)
        if note:
            self.bars.update(self.bar, note=note)

    def close(self) -> None:
        self.bars.remove_task(self.bar)


class _BarProgress:
    """Live bars with time left, for a terminal."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    def task(self, description: str, total: float) -> Task:
        return _BarTask(self.bars, self.bars.add_task(description, total=total, note=""))

    def log(self, text: str) -> None:
        self.bars.console.print(text, style="yellow", markup=False)


class _LineTask:
    def __init__(self, description: str, total: float) -> None:
        self.description, self.total = description, max(total, 1e-9)
        self.done, self.note = 0.0, ""
        self.started = self.shown = time.monotonic()

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        if now - self.shown >= PLAIN_EVERY:
            self.shown = now
            share = min(self.done / self.total, 1.0)
            left = (now - self.started) * (1 - share) / share if share > 0 else 0
            words = f"{self.description}: {share:.0%}, about {left:.0f} s left  {self.note}"
            print(words.rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _LineProgress:
    """A line every few seconds, for logs and pipes."""

    def task(self, description: str, total: float) -> Task:
        return _LineTask(description, total)

    def log(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def showing() -> Iterator[Progress]:
    """Progress for the length of a command."""
    if not stderr.is_terminal:
        yield _LineProgress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Bars(*columns, console=stderr, transient=True) as bars:
        yield _BarProgress(bars)


def printable(text: str) -> str:
    """The text with what is none, as the name of a file may hold, written out."""
    return text.encode(errors="backslashreplace").decode()


def say(text: str) -> None:
    """A line of result."""
    click.echo(printable(text))


def say_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=1, allow_nan=False, default=str))


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns padded to their widest cell; numbers to the right."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = (
            c.rjust(w) if right else c.ljust(w)
            for c, w, right in zip(row, widths, numeric, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def _is_number(text: str) -> bool:
    return text == "" or text[0].isdigit() or text[0] in "-+±"


def ranged(share: float | None, interval: tuple[float, float] | None) -> str:
    """A share with its 95% interval: ``61.2% (58.0 to 64.1)``."""
    if share is None or interval is None:
        return percent(share)
    return f"{percent(share)} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def percent(share: float | None) -> str:
    return "-" if share is None or share != share else f"{100 * share:.1f}%"
