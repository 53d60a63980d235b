"""Races in turns, each run in a process of its own, and the machine they ran on."""

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

from buttress.cores import usable_cores
from buttress.errors import RunError
from buttress.progress import Progress
from buttress.running.launch import ending_on_term

LONG = 60.0  # seconds: who took longer does not run again


@dataclass(frozen=True)
class Job:
    """A module that takes one argument of JSON and prints a line of it."""

    module: str
    given: Mapping[str, Any]

    def run(self) -> dict[str, Any]:
        command = [sys.executable, "-m", self.module, json.dumps(self.given)]
        racer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with racer:
            try:
                shown, errors = racer.communicate()
            finally:
                racer.kill()  # does nothing if it has ended
                racer.wait()
        if racer.returncode:
            last = errors.strip().splitlines()[-1:] or ["no message"]
            raise RunError(last[0])
        found: dict[str, Any] = json.loads(shown.strip().splitlines()[-1])
        return found


def in_turns(
    title: str, jobs: Mapping[str, Job], repeats: int, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """Everyone once, then everyone again, so that what slows the machine hits all."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    failed: set[str] = set()
    task = progress.task(title, repeats * len(jobs))
    try:
        with ending_on_term():  # no racer outlives a race that was ended
            for _ in range(repeats):
                for name, job in jobs.items():
                    if name not in failed and all(r["seconds"] < LONG for r in found[name]):
                        try:
                            found[name].append(job.run())
                        except RunError as error:  # another tool may not work here
                            failed.add(name)
                            progress.log(f"{name} failed: {error}; it is left out")
                    task.advance(1, name)
    finally:
        task.close()
    return found


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
        name = names[0] if names else name
    return {
        "processor": name,
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
