"""How the runs of a study are carried out: what changes no number, kept apart from what does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from buttress.cores import share_of_cores, usable_cores
from buttress.errors import UserError
from buttress.progress import Progress
from buttress.running.bag import Failure, shard
from buttress.running.local import run_all
from buttress.study.only import Only
from buttress.study.work import Work


@dataclass(frozen=True)
class Launch:
    """Where runs go, and how many at once."""

    on: Literal["local", "ray"] = "local"
    workers: int | None = None  # on ray: as many as the cluster has room for
    device: str = "auto"
    part: tuple[int, int] = (1, 1)  # shard, of how many
    only: Only | None = None  # of all runs
    retry: bool = False
    address: str | None = None  # of a Ray cluster
    cpus_per_run: float = 1.0
    gpus_per_run: float = 0.0


def launch(works: Sequence[Work], how: Launch, progress: Progress) -> list[Failure]:
    """Sees every run of this part to its end."""
    mine = shard(works, *how.part)
    if how.on == "ray":
        from buttress.running.on_ray import run_on_ray

        return run_on_ray(mine, how, progress)
    workers = how.workers or default_workers()
    return run_all(mine, workers=workers, device=how.device, retry=how.retry, progress=progress)


def default_workers() -> int:
    """One per GPU, or one per core."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return usable_cores()


@contextmanager
def threads_of_one(workers: int) -> Iterator[None]:
    """The threads that each of so many workers has, so that what is timed is as it will be."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(share_of_cores(workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parse_part(text: str) -> tuple[int, int]:
    """``2/8`` -> (2, 8)."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"a shard is written I/N with 1 <= I <= N, like 2/8, but got {text!r}")
    return int(number), int(count)


@contextmanager
def ending_on_term() -> Iterator[None]:
    """A scheduler's SIGTERM ends the command as Ctrl-C does: locks are released."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are not its matter
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
