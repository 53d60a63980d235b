"""Peak memory of evaluations of more and more images of ImageNet's size, each in its own process.

    python benchmarks/evaluation_memory.py --limit 1000 --out docs/measured/evaluation-memory.md

The images are made when they are asked for, as those of a folder are read. A small network is
attacked by PGD with five steps, with all checks and cross-checks. ``--limit`` is the memory in MB
that a process may allocate in all, Python and torch included (RLIMIT_DATA of Linux).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from buttress.system.files import write_text
from buttress.system.memory import peak_memory_mb

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from evaluation.test_memory import evaluate_images, made_up_dataset

SIZE, STEPS = 224, 5


def measure(images: int, limit: int | None) -> str:
    """The row of a table: images, their size as numbers, peak memory, seconds."""
    torch.set_num_threads(1)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit * 2**20, -1))
    start = time.perf_counter()
    evaluate_images(made_up_dataset(images, SIZE), STEPS)
    seconds = time.perf_counter() - start
    gigabytes = images * 3 * SIZE**2 * 4 / 1e9
    return f"| {images:,} | {gigabytes:.1f} | {peak_memory_mb():,.0f} | {seconds:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[500, 5_000, 50_000])
    parser.add_argument("--limit", type=int, metavar="MB")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measure(options.measure, options.limit))
        return
    lines = ["| images | as floats, GB | peak memory, MB | seconds |", "| ---: " * 4 + "|"]
    limit = [] if options.limit is None else ["--limit", str(options.limit)]
    for images in options.images:
        call = [sys.executable, __file__, "--measure", str(images), *limit]
        lines.append(
            subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()
        )
        print(lines[-1], flush=True)
    if options.out:
        write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
