"""Interleaved repeats, each run in a separate process, and a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from buttress.errors import RunError
from buttress.studies.runner.run import interrupt_on_sigterm
from buttress.system.cpu import available_cpus
from buttress.system.progress import Progress

MAX_REPEATED_SECONDS = 60.0  # seconds: tools that took longer are not repeated


@dataclass(frozen=True)
class SubprocessJob:
    """A module that takes one JSON argument and prints one line of JSON."""

    module: str
    given: Mapping[str, Any]

    def run(self) -> dict[str, Any]:
        command = [sys.executable, "-m", self.module, json.dumps(self.given)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with process:
            try:
                stdout, errors = process.communicate()
            finally:
                process.kill()  # does nothing if it has ended
                process.wait()
        if process.returncode:
            last_line = errors.strip().splitlines()[-1:] or ["no message"]
            raise RunError(last_line[0])
        result: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
        return result


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


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the versions that the numbers depend on."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
        name = names[0] if names else name
    return {
        "processor": name,
        "cores": available_cpus(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
