"""Several processes: equal shares of the runs of an attack, or of the items of an analysis."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
from torch import Tensor

from buttress.errors import ButtressError, RunError
from buttress.system.progress import OnProgress


def partition_runs(run_mask: Tensor, num_workers: int) -> list[Tensor]:
    """Cuts runs (N, runs), a mask, into such masks for each of up to ``num_workers`` processes.

    The runs of all images lie in a row, which is cut into pieces of equal length. So an image is in
    two of them only at a cut: a process does not know that another one fooled its image.
    """
    # Images that follow each other go to different processes: they may be of one class.
    images = torch.arange(len(run_mask), device=run_mask.device)
    order = torch.cat([images[k::num_workers] for k in range(num_workers)])
    position = run_mask[order].flatten().cumsum(0).view_as(run_mask) - 1
    owner = torch.empty_like(position)
    owner[order] = position * num_workers // position[-1, -1].add(1).clamp_min(1)
    masks = [run_mask & (owner == k) for k in range(num_workers)]
    return [mask for mask in masks if mask.any()]


S = TypeVar("S")
T = TypeVar("T")
ProcessTask = Callable[[OnProgress], T]

MIN_IMAGES_PER_PROCESS = 4  # fewer are not worth a process
POLL_SECONDS = 0.2  # seconds between two reports of progress


def default_num_workers(
    images: int, device: torch.device, min_images: int = MIN_IMAGES_PER_PROCESS
) -> int:
    """Number of processes: one per thread that this process may use."""
    is_possible = (
        device.type == "cpu"
        and sys.platform == "linux"
        and not multiprocessing.current_process().daemon
    )
    return max(1, min(torch.get_num_threads(), images // min_images)) if is_possible else 1


def map_in_processes(
    function: Callable[[S], T],
    items: Sequence[S],
    device: torch.device,
    on_progress: OnProgress | None = None,
) -> list[T]:
    """``function`` of each item, in their order, with one process per thread on a CPU.

    An item is never split or joined with another one, so that the number of processes does not
    change what is computed. The function may change what it refers to: each process has a copy.
    """
    num_workers = default_num_workers(len(items), device, min_images=1)

    def compute(share: Sequence[S], report: OnProgress | None) -> list[T]:
        results = []
        for number, item in enumerate(share, start=1):
            results.append(function(item))
            if report is not None:
                report(number / len(share))
        return results

    if num_workers < 2:
        return compute(items, on_progress)
    shares = [items[k::num_workers] for k in range(num_workers)]
    results: list[Any] = [None] * len(items)
    tasks = [partial(compute, share) for share in shares]
    for k, share_results in enumerate(run_in_processes(tasks, on_progress)):
        results[k::num_workers] = share_results
    return results


def run_in_processes(
    tasks: Sequence[ProcessTask[T]], on_progress: OnProgress | None = None
) -> list[T]:
    """The results of tasks of equal size, each in a process of its own."""
    fork = multiprocessing.get_context("fork")
    progress_values = [fork.Value("d", 0.0, lock=False) for _ in tasks]
    with _started_children(fork, tasks, progress_values) as children:
        results: dict[int, T] = {}
        while len(results) < len(tasks):
            waiting = {end: k for k, (_, end) in enumerate(children) if k not in results}
            for end in wait(list(waiting), POLL_SECONDS):
                task_index = waiting[end]  # type: ignore[index]
                results[task_index] = _receive_result(end, children[task_index][0])  # type: ignore[arg-type]
            if on_progress is not None:
                on_progress(sum(s.value for s in progress_values) / len(tasks))
        return [results[k] for k in range(len(tasks))]


@contextlib.contextmanager
def _started_children(
    fork: Any, tasks: Sequence[ProcessTask[Any]], progress_values: Sequence[Any]
) -> Iterator[list[tuple[Any, Connection]]]:
    """Running processes and the ends of their pipes; none outlives the block."""
    children: list[tuple[Any, Connection]] = []
    try:
        for task, progress_value in zip(tasks, progress_values, strict=True):
            receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(
                target=_child_main, args=(task, progress_value, sender), daemon=True
            )
            with warnings.catch_warnings():  # Python warns of threads; the child starts none
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            sender.close()
            children.append((child, receiver))
        yield children
    finally:
        for child, end in children:
            end.close()
            if child.is_alive():
                child.terminate()
            child.join()


def _child_main(task: ProcessTask[Any], progress_value: Any, sender: Connection) -> None:
    """Run a task in a child and send its result, or its error, through the pipe."""
    torch.set_num_threads(1)

    def report_progress(done: float) -> None:
        progress_value.value = done

    try:
        message: tuple[bool, Any] = (True, task(report_progress))
    except Exception as error:
        is_buttress_error = isinstance(error, ButtressError)
        message = (
            False,
            error if is_buttress_error else RunError(f"{type(error).__name__}: {error}"),
        )
    # If the parent has closed its end, it needs no result any more.
    with contextlib.suppress(BrokenPipeError):
        sender.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
    sender.close()


def _receive_result(receiver: Connection, child: Any) -> Any:
    try:
        is_done, payload = pickle.loads(receiver.recv_bytes())
    except EOFError:
        child.join()
        raise RunError(
            f"a process ended with code {child.exitcode}; it may have run out of "
            "memory: try a smaller batch size"
        ) from None
    if not is_done:
        raise payload
    return payload
