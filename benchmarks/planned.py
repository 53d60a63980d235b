"""How good a plan was: what it said of each run that is finished now, beside what that run took.

    buttress study plan table1 --scale mini --json > plan.json
    buttress study run table1 --scale mini
    python benchmarks/planned.py table1 --scale mini --plan plan.json --out results

What a run took is the time of its training and of its attacks, as its files say.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from buttress.files import write_text
from buttress.study import check_scale, load_study, works_of
from buttress.study.survey import Found, survey


def seconds(found: Found) -> float:
    return sum(took.seconds for took in found.took.values())


def lines(said: dict[str, float], found: list[Found]) -> list[str]:
    """A row for each finished run, and the sum."""
    pairs = [(run.work, said[run.work.key], seconds(run)) for run in found]
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
    said: dict[str, float] = {}
    for path in args.plan:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        for run in runs:  # a later plan knows nothing new of what was done by then
            said.setdefault(run["key"], run["seconds"])
    scale = check_scale(args.scale)
    found = [
        run
        for run in survey(works_of(load_study(args.study), scale, args.out))
        if run.state == "done" and said.get(run.work.key)
    ]
    text = "\n".join(lines(said, found)) + "\n"
    print(text, end="")
    if args.table:
        write_text(args.table, text)


if __name__ == "__main__":
    main()
