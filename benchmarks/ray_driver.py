"""How many runs per second the driver of a study on Ray handles.

    python benchmarks/ray_driver.py --tasks 10000 --out docs/measured/ray-driver.md

As many runs are submitted at once as a cluster with 200 places gets. They end at once on the few
processes that this machine has: what is measured is the driver, which submits, waits and collects,
and not the cluster.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from study_commands import make_study

from buttress.studies import expand_study, make_jobs
from buttress.studies.runner import ray_cluster
from buttress.studies.runner.queue import TryResult
from buttress.studies.runner.run import RunnerOptions
from buttress.system.files import write_text
from buttress.system.progress import SilentProgress


def end_at_once(job: Any, device: str, cpus: float) -> TryResult:
    """In place of a run: a task that does nothing."""
    return TryResult("done")


def start_ray(processes: int) -> Any:
    import ray

    options = {"log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=processes, include_dashboard=False, **options)
    warm = ray.remote(lambda: __import__("buttress.studies"))
    ray.get([warm.remote() for _ in range(processes)])
    return ray


def measure_driver(tasks: int, submitted: int, processes: int) -> tuple[float, float]:
    """Seconds and CPU seconds of the driver for all tasks."""
    ray = start_ray(processes)
    ray_cluster.connect = lambda *_: ray
    ray_cluster.run_on_node = end_at_once
    with tempfile.TemporaryDirectory() as folder:
        jobs = make_jobs(expand_study(make_study(tasks), "digits"), Path(folder))[:tasks]
        options = RunnerOptions(backend="ray", workers=submitted)
        started, cpu_started = time.perf_counter(), time.process_time()
        failed = ray_cluster.run_on_ray(jobs, options, SilentProgress())
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if failed:
        raise SystemExit(f"{len(failed)} tasks failed: {failed[0]}")
    return seconds, cpu_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--submitted", type=int, default=210, help="tasks submitted at once")
    parser.add_argument("--processes", type=int, default=2, help="of Ray on this machine")
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    seconds, cpu_seconds = measure_driver(args.tasks, args.submitted, args.processes)
    header = "| runs | submitted at once | seconds | CPU seconds of the driver | runs per second |"
    numbers = f"{seconds:.1f} | {cpu_seconds:.1f} | {args.tasks / seconds:.0f}"
    row = f"| {args.tasks} | {args.submitted} | {numbers} |"
    table = "\n".join([header, "| ---: | ---: | ---: | ---: | ---: |", row]) + "\n"
    print(table)
    if args.out:
        write_text(args.out, table)


if __name__ == "__main__":
    main()
