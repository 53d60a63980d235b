"""Peak memory of this process."""

from __future__ import annotations

import sys
from contextlib import suppress


def peak_memory_mb() -> float:
    """MB that this process, or the largest of its finished children, held at its peak so far.

    On a GPU that is in use the peak of its allocator, if that is larger. Zero where the system does
    not say (Windows).
    """
    peaks = [0.0, _accelerator_peak_mb()]
    with suppress(ImportError):
        import resource

        unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, else KB
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            peaks.append(resource.getrusage(who).ru_maxrss / unit)
    return round(max(peaks), 1)


def _accelerator_peak_mb() -> float:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    return float(torch.cuda.max_memory_allocated() / 2**20)
