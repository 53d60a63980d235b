"""How fast corruptions are made: images per second of each, and the whole of CIFAR-10-C.

    python benchmarks/corruptions.py --out docs/measured/corruptions.md

Each process corrupts its own share of the images in one thread, and all run at once; a rate is that
of all processes together. On a machine that does other work too, the time that the processes were
given says more than the time that passed, so both are shown. The totals are for 10,000 images, 15
corruptions and 5 severities.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch

from buttress.data import corrupt, list_corruptions, load_dataset
from buttress.data.corruptions import SEVERITIES
from buttress.files import write_text

WHOLE = 10_000


class Seconds(NamedTuple):
    passed: float
    given: float  # of processor time


def seconds(job: tuple[str, str, int, int, int]) -> Seconds:
    """One process: a corruption at all severities on its share of the images."""
    name, data, images, part, parts = job
    torch.set_num_threads(1)
    batch = load_dataset(data, limit=images).take(torch.arange(part, images, parts))
    corrupt(batch.x[:8], name, 1, batch.ids[:8])
    passed, given = time.perf_counter(), time.process_time()
    for severity in SEVERITIES:
        corrupt(batch.x, name, severity, batch.ids)
    return Seconds(time.perf_counter() - passed, time.process_time() - given)


def measure(data: str, images: int, parts: int) -> dict[str, Seconds]:
    """What each corruption takes, of the slowest process."""
    found = {}
    with multiprocessing.get_context("spawn").Pool(parts) as pool:
        for name in [*list_corruptions("common"), *list_corruptions("extra")]:
            jobs = [(name, data, images, part, parts) for part in range(parts)]
            passed, given = zip(*pool.map(seconds, jobs, chunksize=1), strict=True)
            found[name] = Seconds(max(passed), max(given))
    return found


def lines(found: dict[str, Seconds], images: int, parts: int) -> list[str]:
    made = images * len(SEVERITIES)
    rows = [
        f"| `{name}` | {made / spent.passed:,.0f} | {made / spent.given:,.0f} |"
        for name, spent in found.items()
    ]
    common = [found[name] for name in list_corruptions("common")]
    passed, given = (sum(times) * WHOLE / images / 60 for times in zip(*common, strict=True))
    count = WHOLE * len(SEVERITIES) * len(common)
    return [
        f"{images:,} images at 5 severities, {parts} processes, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the end.",
        "",
        "| corruption | images per second | by processor time |",
        "| --- | --- | --- |",
        *rows,
        "",
        f"All {count:,} images of the 15 common corruptions: {passed:.1f} minutes, or "
        f"{given:.1f} by processor time.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=WHOLE)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    found = measure(args.data, args.images, args.processes)
    text = "\n".join(lines(found, args.images, args.processes)) + "\n"
    print(text, end="")
    if args.out:
        write_text(args.out, text)


if __name__ == "__main__":
    main()
