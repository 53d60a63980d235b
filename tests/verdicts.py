"""Made-up verdicts of two models, with a planted difference and a planted agreement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.results.attack_record import AttackRecord
from buttress.results.evaluation import Evaluation

Flags = NDArray[np.bool_]


def pair(
    source: np.random.Generator, n: int, accuracy: float, difference: float, split: float
) -> tuple[Flags, Flags]:
    """Flags of A and B: B has this accuracy, A more; they differ on a share ``split`` of images."""
    only_a, only_b = (split + difference) / 2, (split - difference) / 2
    both = accuracy - only_b
    kinds = source.choice(4, n, p=[both, only_a, only_b, 1 - both - split])
    return (kinds == 0) | (kinds == 1), (kinds == 0) | (kinds == 2)


def evaluation(flags: Mapping[str, Any], ids: Any = None, **made: Any) -> Evaluation:
    """An evaluation with one record per entry; ``made`` is in the metadata of each."""
    records = {}
    for name, given in flags.items():
        correct = np.asarray(given, dtype=bool)
        n = len(correct)
        numbers = np.arange(n) if ids is None else np.asarray(ids)
        meta = {"attack": name, "args": {}, "threat": "", "suite": "s", "dataset": "digits",
                "split": "test", "seed": 0, **made}  # fmt: skip
        records[name] = AttackRecord(
            name, ids=numbers, labels=numbers % 10, predictions=numbers % 10, correct=correct,
            loss=np.zeros(n, np.float32), perturbation_size=np.zeros(n, np.float32), metadata=meta,
        )  # fmt: skip
    return Evaluation("s", records)
