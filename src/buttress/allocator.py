"""Memory of freed tensors is kept for the next ones.

The C library of Linux gives large freed blocks back to the system, and every new tensor then pays
for its pages again: a third of the time of an attack on a small network. Only the process that is
told so changes; set BUTTRESS_ALLOCATOR=system to leave it alone.
"""

from __future__ import annotations

import ctypes
import functools
import os

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # names of glibc's mallopt(3)
LARGEST = 1 << 24  # blocks up to here come from the heap; pieces of images are larger
SPARE = 1 << 26  # the heap grows by this much at once


@functools.cache
def keep_freed_memory() -> bool:
    """Whether it could be arranged; once per process."""
    if os.environ.get("BUTTRESS_ALLOCATOR") == "system":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    wanted = ((MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, SPARE))
    return all(mallopt(name, value) == 1 for name, value in wanted)
