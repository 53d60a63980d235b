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
from buttress.results.suite_spec import SEVERITIES
from buttress.system.files import write_text

CIFAR_TEST_IMAGES = 10_000


class ElapsedTime(NamedTuple):
    wall: float
    cpu: float  # of CPU time


def time_corruption(arguments: tuple[str, str, int, int, int]) -> ElapsedTime:
    """One process: a corruption at all severities on its share of the images."""
    name, data, images, process_index, num_processes = arguments
    torch.set_num_threads(1)
    batch = load_dataset(data, limit=images).take(
        torch.arange(process_index, images, num_processes)
    )
    corrupt(batch.x[:8], name, 1, batch.ids[:8])
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    for severity in SEVERITIES:
        corrupt(batch.x, name, severity, batch.ids)
    return ElapsedTime(time.perf_counter() - wall_start, time.process_time() - cpu_start)


def measure(data: str, images: int, num_processes: int) -> dict[str, ElapsedTime]:
    """What each corruption takes, of the slowest process."""
    elapsed_times = {}
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        for name in [*list_corruptions("common"), *list_corruptions("extra")]:
            jobs = [(name, data, images, part, num_processes) for part in range(num_processes)]
            wall, cpu = zip(*pool.map(time_corruption, jobs, chunksize=1), strict=True)
            elapsed_times[name] = ElapsedTime(max(wall), max(cpu))
    return elapsed_times


def table(elapsed_times: dict[str, ElapsedTime], images: int, num_processes: int) -> list[str]:
    num_images = images * len(SEVERITIES)
    rows = [
        f"| `{name}` | {num_images / elapsed.wall:,.0f} | {num_images / elapsed.cpu:,.0f} |"
        for name, elapsed in elapsed_times.items()
    ]
    common = [elapsed_times[name] for name in list_corruptions("common")]
    wall, cpu = (
        sum(times) * CIFAR_TEST_IMAGES / images / 60 for times in zip(*common, strict=True)
    )
    count = CIFAR_TEST_IMAGES * len(SEVERITIES) * len(common)
    return [
        f"{images:,} images at 5 severities, {num_processes} processes, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| corruption | images per second | by CPU time |",
        "| --- | --- | --- |",
        *rows,
        "",
        f"All {count:,} images of the 15 common corruptions: {wall:.1f} minutes, or "
        f"{cpu:.1f} by CPU time.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=CIFAR_TEST_IMAGES)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    elapsed_times = measure(args.data, args.images, args.processes)
    text = "\n".join(table(elapsed_times, args.images, args.processes)) + "\n"
    print(text, end="")
    if args.out:
        write_text(args.out, text)


if __name__ == "__main__":
    main()
