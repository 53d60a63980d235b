"""Interleaved repeats, each in a separate process, and the file of their results."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from buttress.errors import RunError, UserError
from buttress.system.cpu import available_cpus
from buttress.system.files import write_text
from buttress.system.interrupt import interrupt_on_sigterm
from buttress.system.progress import Progress

MAX_REPEATED_SECONDS = 60.0  # seconds: tools that took longer are not repeated


class SubprocessJob:
    """A function of some settings that a process of its own calls; it returns a dataclass.

    The process starts with the first call and waits between calls, so that the time of importing
    torch is spent once; or each call has a new one.
    """

    def __init__(
        self, function: Callable[[Any], Any], settings: Any, *, keep_process: bool = True
    ) -> None:
        self.function, self.settings, self.keep_process = function, settings, keep_process
        self._process: Any = None
        self._connection: Any = None

    def run(self) -> dict[str, Any]:
        """The result of a call; raises `RunError` if the function does."""
        if self._process is None:
            # Not a fork: threads of torch's libraries do not survive one, and calls wait for ever.
            context = multiprocessing.get_context("spawn")
            self._connection, other_end = context.Pipe()
            self._process = context.Process(
                target=_answer_calls, args=(self.function, self.settings, other_end)
            )
            self._process.start()
            other_end.close()
        try:
            self._connection.send(None)
            result, error = self._connection.recv()
        except (EOFError, ConnectionError):
            error = "its process ended without a result; it may have run out of memory"
        if not self.keep_process:
            self.close()
        if error:
            raise RunError(error)
        return dict(result)

    def close(self) -> None:
        """End the process, also while it works."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def _answer_calls(function: Callable[[Any], Any], settings: Any, connection: Connection) -> None:
    """Call the function in this new process as often as asked; what it prints is dropped."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    with suppress(EOFError):
        while True:
            connection.recv()
            try:
                connection.send((asdict(function(settings)), ""))
            except Exception as error:  # of a tool that does not work here
                connection.send(({}, f"{type(error).__name__}: {error}"))


def run_interleaved(
    title: str, jobs: Mapping[str, SubprocessJob], repeats: int, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """Run all jobs once, then again, so that slowdowns of the machine affect all."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    failed: set[str] = set()
    task = progress.add_task(title, repeats * len(jobs))
    try:
        with interrupt_on_sigterm():  # stop running tools if the benchmark is interrupted
            for _ in range(repeats):
                for name, job in jobs.items():
                    if name not in failed and all(
                        r["seconds"] < MAX_REPEATED_SECONDS for r in results[name]
                    ):
                        try:
                            results[name].append(job.run())
                        except RunError as error:  # another tool may not work here
                            failed.add(name)
                            progress.log(f"{name} failed: {error}; it is omitted")
                    task.advance(1, name)
    finally:
        task.close()
        for job in jobs.values():
            job.close()
    return results


def median_row(settings: Any, results: Sequence[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    """One row of a result file: settings, medians over the repeats (the largest memory), times."""
    medians = {
        key: value
        if isinstance(value, (list, tuple))
        else statistics.median(r[key] for r in results)
        for key, value in results[0].items()
    }
    if "peak_memory_mb" in medians:  # later repeats use what the first one allocated
        medians["peak_memory_mb"] = max(r["peak_memory_mb"] for r in results)
    times = {"repeats": len(results), "all_seconds": [r["seconds"] for r in results]}
    return {**asdict(settings), **extra, **medians, **times}


def write_results(path: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the rows of a benchmark, one per line, with the machine; return all of it."""
    content = {"machine": describe_machine(), "rows": list(rows)}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    machine = json.dumps(content["machine"])
    write_text(path, f'{{\n "machine": {machine},\n "rows": [\n{lines}\n ]\n}}\n')
    return content


def read_results(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of `write_results`."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        is_valid = isinstance(rows, list) and all({"tool", "trainer"} & row.keys() for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise UserError(f"{path} must be a result file of `buttress bench`, but is not one")
    return list(rows)


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the versions that the numbers depend on."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
        name = names[0] if names else name
    return {
        "cpu": name,
        "cores": available_cpus(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
