"""Interleaved repeats, each in a separate process, and the file of their results."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class SubprocessJob:
    """A function of some settings that is called in a process of its own; it returns a dataclass.

    The process is a fork of a server that has only imported the function's module, so that it
    starts at once and with the memory of a new process.
    """

    function: Callable[[Any], Any]
    settings: Any

    def run(self) -> dict[str, Any]:
        has_server = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
        if has_server:
            context.set_forkserver_preload([self.function.__module__])
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_result, args=(self.function, self.settings, sender))
        process.start()
        sender.close()
        try:
            result, error = receiver.recv()
        except EOFError:
            result, error = {}, "its process ended without a result; it may have run out of memory"
        finally:
            process.kill()  # does nothing if it has ended
            process.join()
            receiver.close()
        if error:
            raise RunError(error)
        return dict(result)


def _send_result(function: Callable[[Any], Any], settings: Any, sender: Connection) -> None:
    """Call the function in this new process; what it prints is dropped."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    try:
        sender.send((asdict(function(settings)), ""))
    except Exception as error:  # of a tool that does not work here
        sender.send(({}, f"{type(error).__name__}: {error}"))


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
    return results


def median_row(settings: Any, results: Sequence[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    """One row of a result file: settings, medians over the repeats, and all times."""
    medians = {
        key: value if isinstance(value, list) else statistics.median(r[key] for r in results)
        for key, value in results[0].items()
    }
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
