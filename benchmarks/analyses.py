"""CPU time and peak memory of every analysis of a run, the slowest first.

    python benchmarks/analyses.py --out docs/measured/analyses.md

Two small models are trained on digits, and each analysis runs on them with its own settings, as a
command of its own. The cost of `sparsity`, which is little more than the start of Python, is
subtracted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from buttress.analysis import list_analyses
from buttress.system.files import write_text
from buttress.training import train

COMMAND = "import sys; from buttress.cli.commands import main; sys.exit(main())"
HEADER = "| analysis | CPU seconds | seconds | peak memory, MB |"
MODELS = ("resnet_tiny", "vit_tiny")
CHEAPEST = "sparsity"  # it reads the weights only: its command is start-up


@dataclass(frozen=True)
class CommandCost:
    cpu_seconds: float
    seconds: float
    peak_memory_mb: float


def run_command(*args: str) -> CommandCost | None:
    """The cost of a command with its processes; None if it does not apply to the run."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return None
    seconds = time.perf_counter() - started
    return CommandCost(usage.ru_utime + usage.ru_stime, seconds, usage.ru_maxrss / 1024)


def measure(names: list[str]) -> list[str]:
    """The rows of the table."""
    costs: dict[str, CommandCost] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = [f"{folder}/{model}" for model in MODELS]
        for model, run in zip(MODELS, runs, strict=True):
            train(model, "digits", "quickstart-at", run, limit=400)
        for name in [CHEAPEST, *(n for n in names if n != CHEAPEST)]:
            cost = run_command("analyze", name, *runs)
            if cost is None:
                print(f"{name}: not for runs like these", file=sys.stderr, flush=True)
                continue
            costs[name] = cost
            print(f"{name}: {cost.cpu_seconds:.1f} CPU seconds", file=sys.stderr, flush=True)
    start = costs.pop(CHEAPEST)
    rows = sorted(costs.items(), key=lambda item: -item[1].cpu_seconds)
    return [
        f"| `{name}` | {max(0.0, cost.cpu_seconds - start.cpu_seconds):.1f} | "
        f"{max(0.0, cost.seconds - start.seconds):.1f} | {cost.peak_memory_mb:.0f} |"
        for name, cost in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--analyses", default=",".join(list_analyses()))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [HEADER, "|" + " --- |" * 4, *measure(args.analyses.split(","))]
    print("\n".join(lines))
    if args.out is not None:
        write_text(args.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
