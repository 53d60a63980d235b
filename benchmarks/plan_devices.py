"""What a study at the scale of the papers would take on each named device, by arithmetic alone.

    python benchmarks/plan_devices.py table1 --table docs/measured/plan-devices.md

Nothing is timed: the FLOPs of the plan over the peak of the device times the fraction of it that
is assumed (`buttress study plan NAME --scale paper --device-name NAME` prints the same).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from buttress.studies import expand_study, load_study, plan_study
from buttress.studies.speed import DEVICES


def device_rows(study: str) -> list[str]:
    expanded = expand_study(load_study(study), "paper")
    rows = []
    for device in DEVICES.values():
        with tempfile.TemporaryDirectory() as folder:
            plan = plan_study(expanded, Path(folder), device_name=device.name)
        assert plan.hours is not None
        longest = max(run.seconds or 0.0 for run in plan.runs) / 3600
        numbers = f"{device.peak_flops / 1e12:.3g} | {100 * device.efficiency:.0f}%"
        times = f"{plan.hours / 24:.3g} | {longest:.3g}"
        rows.append(f"| `{device.name}` | {numbers} | {times} |")
    head = f"{len(plan.runs)} runs, {plan.flops / 1e18:.3g} EFLOP"
    return [
        f"| device ({head}) | peak, TFLOP/s | assumed | days of one device | longest run, hours |",
        "| --- | ---: | ---: | ---: | ---: |",
        *rows,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    text = "\n".join(device_rows(args.study)) + "\n"
    print(text)
    if args.table is not None:
        args.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
