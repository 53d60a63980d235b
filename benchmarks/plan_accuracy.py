"""How good a plan was: what it said of each run that is finished now, beside what that run took.

    buttress study plan table1 --scale mini --json > plan.json
    buttress study run table1 --scale mini
    python benchmarks/plan_accuracy.py table1 --scale mini --plan plan.json --out results

What a run took is the time of its training and of its attacks, as its files say.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from buttress.studies import expand_study, load_study, make_jobs
from buttress.studies.jobs import RunStatus, read_statuses
from buttress.system.files import write_text


def actual_seconds(run: RunStatus) -> float:
    return sum(took.seconds for took in run.usage.values())


def table(planned_seconds: dict[str, float], finished_runs: list[RunStatus]) -> list[str]:
    """A row for each finished run, and the sum."""
    pairs = [(run.job, planned_seconds[run.job.key], actual_seconds(run)) for run in finished_runs]
    rows = [
        f"| {work.label()} | {planned:,.0f} | {took:,.0f} | {planned / took:.2f} |"
        for work, planned, took in pairs
    ]
    planned = sum(pair[1] for pair in pairs)
    took = sum(pair[2] for pair in pairs)
    return [
        "| run | planned, s | took, s | planned / took |",
        "| --- | --- | --- | --- |",
        *rows,
        f"| all {len(pairs)} | {planned:,.0f} | {took:,.0f} | {planned / took:.2f} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--scale", default="mini")
    parser.add_argument("--plan", type=Path, required=True, nargs="+", help="the earlier first")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--table", type=Path, help="write the table here too")
    args = parser.parse_args()
    planned_seconds: dict[str, float] = {}
    for path in args.plan:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        for run in runs:  # a later plan knows nothing new of what was done by then
            planned_seconds.setdefault(run["key"], run["seconds"])
    study = load_study(args.study)
    expanded = expand_study(study, study.choose_scale(args.scale))
    finished_runs = [
        run
        for run in read_statuses(make_jobs(expanded, args.out))
        if run.state == "done" and planned_seconds.get(run.job.key)
    ]
    text = "\n".join(table(planned_seconds, finished_runs)) + "\n"
    print(text, end="")
    if args.table:
        write_text(args.table, text)


if __name__ == "__main__":
    main()
