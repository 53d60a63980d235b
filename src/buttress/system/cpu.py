"""CPU cores that this process may use, and malloc settings."""

from __future__ import annotations

import ctypes
import functools
import os
from contextlib import suppress


def available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_per_worker(workers: int) -> int:
    """Number of threads of each of several parallel processes."""
    return max(1, available_cpus() // workers)


MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # names of glibc's mallopt(3)
MAX_HEAP_BLOCK = 1 << 24  # blocks up to here come from the heap; pieces of images are larger
HEAP_GROWTH = 1 << 26  # the heap grows by this much at once


@functools.cache
def disable_malloc_trim() -> bool:
    """Apply the malloc settings once per process; return whether it worked."""
    if os.environ.get("BUTTRESS_ALLOCATOR") == "system":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    settings = (
        (MMAP_THRESHOLD, MAX_HEAP_BLOCK),
        (TRIM_THRESHOLD, 2**31 - 1),
        (TOP_PAD, HEAP_GROWTH),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)


def release_freed_memory() -> None:
    """Return freed blocks of the heap to the system, which pieces of many sizes leave scattered."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
