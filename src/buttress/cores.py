"""The cores that this process may use: a scheduler or `taskset` may have given it only some."""

from __future__ import annotations

import os


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_of_cores(workers: int) -> int:
    """The threads of each of so many processes at once."""
    return max(1, usable_cores() // workers)
