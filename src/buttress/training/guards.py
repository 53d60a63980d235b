"""Detection of failed training from its history: collapse, divergence, no learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLLAPSE_FRACTION = 0.5  # of the best robust validation accuracy: a larger drop is a collapse, ...
MIN_COLLAPSE_DROP = 0.08  # ... if it is also larger than this
DIVERGENCE_FACTOR = 4.0  # times the loss of the first epoch
CHANCE_FACTOR, CHANCE_MARGIN = 1.5, 0.05  # below chance times or plus this: no learning
MAX_ROLLBACKS = 3
TRAINING_FAILED = "training failed"  # first words of the warning about a model that learned nothing

EpochMetrics = dict[str, Any]


def has_collapsed(history: Sequence[EpochMetrics]) -> bool:
    """Whether the last epoch shows catastrophic overfitting.

    Robust accuracy on validation images, under the (stronger) validation attack, fell to less than
    half of its best, and robust accuracy on training images, under the training attack, did not
    fall (arXiv:2001.03994). Label leaking is one form of it.
    """
    validated = [row for row in history if row["val_robust"] is not None]
    if len(validated) < 2 or validated[-1] is not history[-1]:
        return False
    latest, best = validated[-1], max(validated, key=lambda row: row["val_robust"])
    drop = best["val_robust"] - latest["val_robust"]
    has_dropped = drop >= max(COLLAPSE_FRACTION * best["val_robust"], MIN_COLLAPSE_DROP)
    return bool(has_dropped and latest["train_accuracy"] >= best["train_accuracy"])


def has_diverged(history: Sequence[EpochMetrics], loss: float) -> bool:
    """Whether the loss of an epoch is far above that of the first."""
    return bool(history) and loss > DIVERGENCE_FACTOR * max(history[0]["loss"], 1.0)


def training_warnings(history: Sequence[EpochMetrics], num_classes: int) -> list[str]:
    """Warnings about a finished run."""
    warnings = []
    clean_accuracies = [row["val_clean"] for row in history if row["val_clean"] is not None]
    chance = 1 / num_classes
    if clean_accuracies and max(clean_accuracies) < min(
        CHANCE_FACTOR * chance, chance + CHANCE_MARGIN
    ):
        warnings.append(
            f"{TRAINING_FAILED}: validation accuracy never exceeded {max(clean_accuracies):.1%} "
            f"(chance: {1 / num_classes:.1%}); lower the learning rate or set "
            "eps_warmup_epochs"
        )
    if any(has_collapsed(history[: end + 1]) for end in range(len(history))):
        warnings.append(
            "catastrophic overfitting: validation robust accuracy collapsed while accuracy "
            "under the training attack rose; use more attack steps or on_collapse: rollback"
        )
    return warnings
