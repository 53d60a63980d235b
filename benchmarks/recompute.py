"""Train and attack kept runs again from nothing, and compare the result of every sample.

    python benchmarks/recompute.py --count 2 --seed 0 --table docs/measured/recompute.md

The runs are drawn at random from docs/results. The seconds are those of this machine.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import numpy as np

from buttress.results.attack_record import read_attack_record
from buttress.results.run import Run
from buttress.studies import expand_study, load_study
from buttress.studies.jobs import RunJob, complete_run, make_jobs
from buttress.studies.spec import Scale
from buttress.system.files import write_text
from buttress.system.progress import SilentProgress

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import kept_runs  # noqa: E402


def compare_records(kept: Run, again: Run) -> tuple[int, int]:
    """Count the per-sample results of all attacks, and those that differ."""
    total = different = 0
    for file in sorted(kept.path.glob("eval/*/*.parquet")):
        first = read_attack_record(file)
        second = read_attack_record(again.path / file.relative_to(kept.path))
        assert np.array_equal(first.ids, second.ids)
        total += len(first.correct)
        different += int((first.correct != second.correct).sum())
    return total, different


def kept_jobs(study: str, scale: Scale, kept: Path, root: Path) -> list[RunJob]:
    jobs = make_jobs(expand_study(load_study(study), scale), root)
    return [job for job in jobs if (kept / job.key / "done.json").is_file()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="table1")
    parser.add_argument("--scale", default="mini")
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("recompute"))
    parser.add_argument("--table", type=Path, help="write the table here too")
    args = parser.parse_args()
    kept = args.work / "kept"
    kept_runs.unpack_runs(kept_runs.KEPT, kept)
    jobs = kept_jobs(args.study, args.scale, kept, args.work)
    lines = ["| run | per-sample results | that differ |", "| --- | ---: | ---: |"]
    for job in random.Random(args.seed).sample(jobs, min(args.count, len(jobs))):
        again = complete_run(job, device="cpu", progress=SilentProgress())
        total, different = compare_records(Run(kept / job.key), again)
        lines.append(f"| {job.label()}, seed {job.spec.seed} | {total:,} | {different:,} |")
        print(lines[-1], flush=True)
    if args.table:
        write_text(args.table, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
