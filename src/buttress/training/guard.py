"""What can go wrong while training, noticed from its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FALL = 0.5  # of the best accuracy under attack on held-out images: losing more is a collapse ...
LEAST_FALL = 0.08  # ... unless it is so little that chance explains it
DIVERGED = 4.0  # times the loss of the first epoch
NEAR_CHANCE, NEAR = 1.5, 0.05  # times the accuracy of guessing, or so much more: no learning yet
MOST_ROLLBACKS = 3

Row = dict[str, Any]


def has_collapsed(history: Sequence[Row]) -> bool:
    """Whether the last epoch lost its robustness while its own attack looked beaten.

    Accuracy on held-out images under the (stronger) validation attack fell to less than half of its
    best, and accuracy on training images under the training attack did not fall: catastrophic
    overfitting (arXiv:2001.03994), of which label leaking is one form.
    """
    seen = [row for row in history if row["val_robust"] is not None]
    if len(seen) < 2 or seen[-1] is not history[-1]:
        return False
    now, best = seen[-1], max(seen, key=lambda row: row["val_robust"])
    fall = best["val_robust"] - now["val_robust"]
    fell = fall >= max(FALL * best["val_robust"], LEAST_FALL)
    return bool(fell and now["train_accuracy"] >= best["train_accuracy"])


def has_diverged(history: Sequence[Row], loss: float) -> bool:
    """Whether the loss of an epoch is far above that of the first."""
    return bool(history) and loss > DIVERGED * max(history[0]["loss"], 1.0)


def warnings_of(history: Sequence[Row], num_classes: int) -> list[str]:
    """What a finished run must say about itself."""
    found = []
    clean = [row["val_clean"] for row in history if row["val_clean"] is not None]
    chance = 1 / num_classes
    if clean and max(clean) < min(NEAR_CHANCE * chance, chance + NEAR):
        found.append(
            f"training failed: accuracy on held-out images never exceeded {max(clean):.1%}, and "
            f"guessing gives {1 / num_classes:.1%}; lower the learning rate or warm eps up"
        )
    if any(has_collapsed(history[: end + 1]) for end in range(len(history))):
        found.append(
            "catastrophic overfitting: accuracy under a stronger attack collapsed while that under "
            "the training attack rose; use more attack steps or on_collapse: rollback"
        )
    return found
