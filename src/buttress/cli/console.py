"""Console output: results on stdout, progress and logs on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import TaskID as BarID

from buttress.system.progress import Progress, ProgressTask

if TYPE_CHECKING:
    from buttress.results.core import AccuracyEstimate

stderr_console = Console(stderr=True, highlight=False)
LINE_SECONDS = 5.0  # seconds between lines where there is no terminal


class _BarTask:
    def __init__(self, bars: Bars, bar: BarID) -> None:
        self.bars, self.bar = bars, bar

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.bars.advance(self.bar, amount)
        if note:
            self.bars.update(self.bar, note=note)

    def resume(self, amount: float) -> None:
        (task,) = (task for task in self.bars.tasks if task.id == self.bar)
        self.bars.reset(self.bar, completed=int(task.completed + amount))  # forgets the speed

    def close(self) -> None:
        self.bars.remove_task(self.bar)


class _BarProgress:
    """Progress bars with the remaining time, for a terminal."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    def add_task(self, description: str, total: float) -> ProgressTask:
        return _BarTask(self.bars, self.bars.add_task(description, total=total, note=""))

    def log(self, text: str) -> None:
        self.bars.console.print(text, style="yellow", markup=False)


class _LineTask:
    def __init__(self, description: str, total: float) -> None:
        self.description, self.total = description, max(total, 1e-9)
        self.done, self.resumed, self.note = 0.0, 0.0, ""
        self.started = self.last_printed = time.monotonic()

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        if now - self.last_printed >= LINE_SECONDS:
            self.last_printed = now
            fraction = min((self.resumed + self.done) / self.total, 1.0)
            time_left = "time left unknown"
            if self.done > 0:
                seconds = (now - self.started) / self.done * (1 - fraction) * self.total
                time_left = f"about {seconds:.0f} s left"
            line = f"{self.description}: {fraction:.0%}, {time_left}  {self.note}"
            print(line.rstrip(), file=sys.stderr, flush=True)

    def resume(self, amount: float) -> None:
        self.resumed += amount

    def close(self) -> None:
        pass


class _LineProgress:
    """A line every few seconds, for logs and pipes."""

    def add_task(self, description: str, total: float) -> ProgressTask:
        return _LineTask(description, total)

    def log(self, text: str) -> None:
        print(escape_unprintable(text), file=sys.stderr, flush=True)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Show progress while a command runs: bars in a terminal, lines elsewhere."""
    if not stderr_console.is_terminal:
        yield _LineProgress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Bars(*columns, console=stderr_console, transient=True) as bars:
        yield _BarProgress(bars)


def escape_unprintable(text: str) -> str:
    """Escape characters that cannot be encoded, such as those of a file name."""
    return text.encode(errors="backslashreplace").decode()


def print_line(text: str) -> None:
    """Print a line of the result to stdout."""
    click.echo(escape_unprintable(text))


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=1, allow_nan=False, default=str))


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Columns padded to their widest cell; numbers to the right."""
    all_rows = [header, *rows]
    widths = [max(len(row[i]) for row in all_rows) for i in range(len(header))]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    lines = []
    for row in all_rows:
        padded = (
            c.rjust(w) if right else c.ljust(w)
            for c, w, right in zip(row, widths, numeric, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def _is_number(text: str) -> bool:
    return text == "" or text[0].isdigit() or text[0] in "-+±"


def format_with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    """Format a fraction with its 95% interval: ``61.2% (58.0 to 64.1)``."""
    if value is None or interval is None:
        return format_percent(value)
    return f"{format_percent(value)} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def format_estimate(estimate: AccuracyEstimate) -> str:
    return format_with_interval(estimate.accuracy, estimate.interval)


def format_percent(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.1f}%"


SI_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_amount(value: float, unit: str = "") -> str:
    """``1.2 TFLOP``."""
    for factor, prefix in SI_PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


DURATION_UNITS = ((365.25 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min"), (1, "s"))


def format_duration(seconds: float | None) -> str:
    """``40 s``, ``12 min``, ``5.5 h``, ``12 days``, ``5.5 years``: at least two of a unit."""
    if seconds is None:
        return "unknown"
    length, unit = next((row for row in DURATION_UNITS if seconds >= 2 * row[0]), (1, "s"))
    value = seconds / length
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
