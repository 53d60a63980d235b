"""Options of running an attack."""

from __future__ import annotations

from dataclasses import dataclass

from buttress.engine.fast_model import FastModel
from buttress.system.progress import OnProgress


@dataclass(frozen=True)
class AttackOptions:
    """How to run an attack; only the seed changes per-sample results."""

    seed: int = 0
    batch_size: int = 256
    stop_when_fooled: bool = False  # a sample leaves at its first misclassified point
    on_progress: OnProgress | None = None
    fast_model: FastModel | None = None  # of the attacked model, to search in
    workers: int | None = None  # processes; None: one per thread where that is faster
