"""An attack in several processes on one machine, each with one thread and its share of the runs.

Two processes with one thread each do more than one process with two: most operations of an attack
are too short to be worth splitting. Children are forked, as a data loader's are: they share the
network and the images with the parent and start at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from buttress.errors import ButtressError, RunError

T = TypeVar("T")
Told = Callable[[float], None]  # called with the share of the work that is done
Task = Callable[[Told], T]

LEAST = 4  # images that are worth a process
OFTEN = 0.2  # seconds between two looks at the children


def processes(images: int, device: torch.device) -> int:
    """How many processes serve best: one per thread that this process may use."""
    is_possible = (
        device.type == "cpu"
        and sys.platform == "linux"
        and not multiprocessing.current_process().daemon
    )
    return max(1, min(torch.get_num_threads(), images // LEAST)) if is_possible else 1


@contextlib.contextmanager
def threads_of_one(images: int, device: torch.device) -> Iterator[None]:
    """With as many threads as each process of an attack on these images has: to time things."""
    before = torch.get_num_threads()
    try:
        if processes(images, device) > 1:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def in_processes(tasks: Sequence[Task[T]], on_step: Told | None = None) -> list[T]:
    """The results of tasks of equal size, each in a process of its own."""
    fork = multiprocessing.get_context("fork")
    shares = [fork.Value("d", 0.0, lock=False) for _ in tasks]
    with _children(fork, tasks, shares) as children:
        results: dict[int, T] = {}
        while len(results) < len(tasks):
            waiting = {end: k for k, (_, end) in enumerate(children) if k not in results}
            for end in wait(list(waiting), OFTEN):
                number = waiting[end]  # type: ignore[index]
                results[number] = _received(end, children[number][0])  # type: ignore[arg-type]
            if on_step is not None:
                on_step(sum(s.value for s in shares) / len(tasks))
        return [results[k] for k in range(len(tasks))]


@contextlib.contextmanager
def _children(
    fork: Any, tasks: Sequence[Task[Any]], shares: Sequence[Any]
) -> Iterator[list[tuple[Any, Connection]]]:
    """Processes at work and the ends of their pipes; none outlives the block."""
    children: list[tuple[Any, Connection]] = []
    try:
        for task, share in zip(tasks, shares, strict=True):
            ours, theirs = fork.Pipe(duplex=False)
            child = fork.Process(target=_work, args=(task, share, theirs), daemon=True)
            with warnings.catch_warnings():  # Python warns of threads; the child starts none
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            theirs.close()
            children.append((child, ours))
        yield children
    finally:
        for child, end in children:
            end.close()
            if child.is_alive():
                child.terminate()
            child.join()


def _work(task: Task[Any], share: Any, end: Connection) -> None:
    """What a child does; its result, or its error, goes through the pipe."""
    torch.set_num_threads(1)

    def told(done: float) -> None:
        share.value = done

    try:
        sent: tuple[bool, Any] = (True, task(told))
    except Exception as error:
        is_ours = isinstance(error, ButtressError)
        sent = (False, error if is_ours else RunError(f"{type(error).__name__}: {error}"))
    end.send_bytes(pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL))
    end.close()


def _received(end: Connection, child: Any) -> Any:
    try:
        is_done, what = pickle.loads(end.recv_bytes())
    except EOFError:
        child.join()
        raise RunError(
            f"a process of the attack ended with code {child.exitcode}; it may have run out of "
            "memory: try a smaller batch size"
        ) from None
    if not is_done:
        raise what
    return what
