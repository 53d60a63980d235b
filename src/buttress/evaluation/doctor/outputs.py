"""Are the outputs logits, and always the same ones?"""

from __future__ import annotations

import torch

from buttress.evaluation.doctor.core import CHECKS, LOOK, Patient, finding
from buttress.evaluation.doctor.watch import still_training, watched
from buttress.records.diagnosis import Finding, Severity

ROUNDING = 1e-3  # of the spread of the logits: kernels for other batch sizes differ by far less
PASSES = 5  # as AutoAttack's own check has it
ALONE = 8  # images that are also looked at one by one


@CHECKS.register("class_count", tags=("look",))
def class_count(patient: Patient) -> Finding | None:
    """The model returns another number of classes than the data has."""
    returned, wanted = patient.logits.shape[1], patient.data.num_classes
    if returned == wanted:
        return None
    return finding(
        class_count,
        "untrustworthy",
        f"the model returns {returned} classes and the data has {wanted}",
        "load the model with the right number of classes, or use the data it was trained on",
        {"returned": returned, "classes": wanted},
    )


@CHECKS.register("not_finite", tags=("look",))
def not_finite(patient: Patient) -> Finding | None:
    """Outputs or gradients are infinite or not a number."""
    outputs = _share(~patient.logits.isfinite().all(1))
    slope = patient.slope
    slopes = 0.0 if slope is None else _share(~slope.flatten(1).isfinite().all(1))
    if outputs == slopes == 0:
        return None
    what = "outputs are" if outputs else "gradients are"
    return finding(
        not_finite,
        "untrustworthy",
        f"some {what} not finite ({max(outputs, slopes):.0%} of the images looked at): attacks "
        "stop there and such images may count as survivors",
        "look for a division by zero, a logarithm of zero or an overflow in the network",
        {"outputs": outputs, "gradients": slopes},
    )


@CHECKS.register("probabilities", tags=("look",))
def probabilities(patient: Patient) -> Finding | None:
    """The outputs are probabilities, not logits."""
    sums = patient.logits.sum(1)
    if not ((patient.logits >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)):
        return None
    return finding(
        probabilities,
        "untrustworthy",
        "the outputs are probabilities, not logits: they are not negative and add up to 1, so "
        "losses saturate and attacks are too weak",
        "remove the softmax from the end of the network",
        {"least": float(patient.logits.min()), "sum": float(sums.mean())},
    )


@CHECKS.register("random_outputs", tags=("look",), paper="arXiv:1802.00420")
def random_outputs(patient: Patient) -> Finding | None:
    """The same images get different outputs."""
    x = patient.x[:LOOK]
    rows = torch.stack([patient.answer(x) for _ in range(PASSES)])
    change = float((rows - rows[0]).abs().max()) / _spread(rows[0])
    if not change > ROUNDING:
        return None
    labels = rows.argmax(2)
    moved = _share((labels != labels[0]).any(0))
    cause = ", ".join([*watched(patient.model, x[:2]).random, *still_training(patient.model)])
    averaged = patient.passes > 1
    severity: Severity = "warning" if averaged else "untrustworthy"
    return finding(
        random_outputs,
        severity,
        f"{PASSES} passes over the same images differ{f' ({cause})' if cause else ''}: the model "
        "is randomised, and attacks that assume a fixed model are too weak",
        "turn the randomness off for evaluation, or attack the mean of many passes "
        "(autoattack with version=rand)",
        {"change": change, "predictions_moved": moved, "cause": cause or "unknown"},
    )


@CHECKS.register("batch_dependent", tags=("look",))
def batch_dependent(patient: Patient) -> Finding | None:
    """An image gets other outputs alone than among others."""
    x = patient.x[: max(2, min(LOOK, len(patient.x)))]
    together, again = patient.answer(x)[:ALONE], patient.answer(x)[:ALONE]
    alone = torch.cat([patient.answer(image[None]) for image in x[:ALONE]])
    noise = float((together - again).abs().max())
    change = (float((together - alone).abs().max()) - 2 * noise) / _spread(together)
    if len(x) < 2 or noise / _spread(together) > ROUNDING or not change > ROUNDING:
        return None  # what is random anyway has its own finding
    moved = _share(together.argmax(1) != alone.argmax(1))
    by_batch = bool(watched(patient.model, x[:2]).by_batch)
    cause = "BatchNorm uses the statistics of the batch" if by_batch else "unknown"
    return finding(
        batch_dependent,
        "untrustworthy",
        "an image gets other outputs alone than among others"
        f"{f': {cause}' if by_batch else ''}, so verdicts depend on the batch size and order",
        "make BatchNorm use its running statistics (track_running_stats, evaluation mode)",
        {"change": change, "predictions_moved": moved, "cause": cause},
    )


def _spread(logits: torch.Tensor) -> float:
    """How far logits lie apart: what a change of them is measured by."""
    found = float(logits.float().std())
    return found if found > 0 else 1.0


def _share(flags: torch.Tensor) -> float:
    return float(flags.float().mean())
