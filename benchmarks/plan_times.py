"""How long `buttress study plan` takes, for every study at a scale, in a new folder each.

    python benchmarks/plan_times.py --scale paper --table docs/measured/plan-times.md

Seconds are from the start of the command to its end, the import of torch included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from buttress.cli.console import format_amount, format_duration
from buttress.studies import list_studies, load_study
from buttress.system.files import write_text

COMMAND = "import sys; from buttress.cli.commands import main; sys.exit(main())"
HEADER = "| study | runs | plan, s | CPU, s | FLOPs | memory per device | here, one worker |"


def plan_row(study: str, scale: str) -> tuple[float, str]:
    """Seconds of a plan, and its row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        args = ["study", "plan", study, "--scale", scale, "--out", folder, "--json"]
        cpu_before, started = _child_cpu_seconds(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *args], capture_output=True, text=True, check=True
        )
        seconds = time.perf_counter() - started
    plan = json.loads(done.stdout)
    hours = plan["hours"]
    cells = (
        study, str(len(plan["runs"])), f"{seconds:.1f}", f"{_child_cpu_seconds() - cpu_before:.1f}",
        format_amount(plan["flops"], "FLOP"), format_amount(plan["memory_bytes"], "B"),
        format_duration(None if hours is None else 3600 * hours),
    )  # fmt: skip
    return seconds, f"| {' | '.join(cells)} |"


def _child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", help="default: all that have the scale")
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--table", type=Path, help="write the table here too")
    args = parser.parse_args()
    rows, longest = [HEADER, "| --- | --- | --- | --- | --- | --- | --- |"], 0.0
    names = args.studies or [n for n in list_studies() if args.scale in load_study(n).scales]
    for study in names:
        seconds, row = plan_row(study, args.scale)
        longest = max(longest, seconds)
        rows.append(row)
        print(row, flush=True)
    print(f"longest: {longest:.1f} s")
    if args.table:
        write_text(args.table, "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
