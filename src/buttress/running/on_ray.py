"""Runs the work of a study on a Ray cluster whose nodes share a file system.

Ray decides where a run goes and notices that a node is gone; that no run is done twice is the
matter of its lock, as everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buttress.errors import UserError
from buttress.progress import Progress, Silent
from buttress.running.attempt import Outcome, attempt
from buttress.running.bag import Bag, Failure
from buttress.running.local import LOOK, note
from buttress.running.whole import Whole
from buttress.study.work import Work

if TYPE_CHECKING:
    from buttress.running.launch import Launch

AHEAD = 2  # runs handed to the cluster beyond what it has room for


def run_on_ray(works: Sequence[Work], how: Launch, progress: Progress) -> list[Failure]:
    """Completes every run on a cluster: a named one, one that runs here, or a new one."""
    ray = connect(how.address, progress)
    bag = Bag([absolute(work) for work in works], retry=how.retry)
    whole = Whole(bag.works, progress)
    task = ray.remote(num_cpus=how.cpus_per_run, num_gpus=how.gpus_per_run, max_retries=0)(on_node)
    running: dict[Any, int] = {}
    try:
        while bag.open:
            room = how.workers or _room(ray, how) + AHEAD
            while len(running) < room and (index := bag.take()) is not None:
                running[task.remote(bag.works[index], how.device, how.cpus_per_run)] = index
            ready, _ = ray.wait(list(running), timeout=LOOK) if running else ([], [])
            for reference in ready:
                _settle(ray, reference, running.pop(reference), bag, whole)
            if not running and bag.open:
                time.sleep(LOOK)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        whole.close()
        ray.shutdown()
    return bag.failed()


def connect(address: str | None, progress: Progress) -> Any:
    """Ray, joined to a cluster: a given one, one that runs here, or one started for the purpose."""
    try:
        import ray
    except ImportError:
        raise UserError(
            "`--on ray` needs Ray: install it with pip install 'buttress[ray]', or run locally or "
            "in shards"
        ) from None
    wanted = address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=wanted or "auto", **quiet)
    except ConnectionError as error:
        if wanted not in (None, "auto"):
            raise UserError(f"there is no Ray cluster at {wanted}: {error}") from None
        ray.init(include_dashboard=False, **quiet)
        progress.log("no Ray cluster was found; one was started on this machine")
    return ray


def on_node(work: Work, device: str, cpus: float) -> Outcome:
    """What a process of the cluster does."""
    import torch

    torch.set_num_threads(max(1, int(cpus)))
    return attempt(work, device=device, progress=Silent())


def _settle(ray: Any, reference: Any, index: int, bag: Bag, whole: Whole) -> None:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:  # the process or its node is gone
        reason = f"its process on the cluster was lost ({type(error).__name__})"
        whole.progress.log(f"{bag.works[index].key}: {reason}")
        if bag.lose(index, reason):
            whole.done(index)
        return
    note(bag, whole, index, outcome)


def _room(ray: Any, how: Launch) -> int:
    """Runs that the cluster can have at once."""
    there = ray.cluster_resources()
    room = there.get("CPU", 1.0) / max(how.cpus_per_run, 1e-9)
    if how.gpus_per_run > 0:
        room = min(room, there.get("GPU", 0.0) / how.gpus_per_run)
    return max(1, int(room))


def absolute(work: Work) -> Work:
    """The same with paths that mean the same on every node."""
    source = None if work.source is None else Path(work.source).resolve()
    return replace(work, folder=work.folder.resolve(), source=source)
