"""Checks on the input of the model: normalization, pixel range, order of channels and pixels.

Each check transforms the images. A model that was trained on images transformed like this then
has a significantly higher clean accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from buttress.evaluation.doctor.core import (
    CHECKS,
    CheckFunction,
    ModelUnderTest,
    make_finding,
)
from buttress.evaluation.doctor.labels import label_permutation
from buttress.results.diagnosis import Finding

MIN_GAIN = 0.05  # gain in clean accuracy ...
MIN_Z_SCORE = 3.0  # ... and its z-score in a sign test on the images that changed
# Normalized images have a std of about 1; normalized twice 1 / std, 3 or 4.
DOUBLE_NORMALIZED_STD = 2.0
GAIN_BATCH = 4  # misclassified images per pass, to stop as soon as too few can be gained
RELATIVE_TOLERANCE = 0.2  # a small sample differs less from the whole dataset
COMMON_STATISTICS: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = (
    ("mean and std 1/2", (0.5,), (0.5,)),
    ("mean 1/2 and std 1/4", (0.5,), (0.25,)),
    ("the mean and std of ImageNet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ("the mean and std of CIFAR-10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("the mean and std of CIFAR-100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ("the mean and std of MNIST", (0.1307,), (0.3081,)),
)


class InputTransform(NamedTuple):
    """A transform of the images, with its description."""

    name: str
    apply: Callable[[Tensor], Tensor]


class AccuracyChange(NamedTuple):
    """Clean accuracy before and after a transform."""

    transform: str
    before: float
    after: float


@CHECKS.register("normalized_twice", tags=("model",))
def normalized_twice(subject: ModelUnderTest) -> Finding | None:
    """The input is normalized twice: accuracy rises when one normalization is undone."""
    remedy = "normalize once, in the first layer of the model; pass images in [0, 1]"
    transforms = [
        InputTransform(name, lambda x, m=mean, s=std: x * s + m)  # type: ignore[misc]
        for name, mean, std in _candidate_statistics(subject)
    ]
    if (change := _best_transform(subject, transforms)) is not None:
        return _accuracy_gain_finding(
            normalized_twice, change, "the input seems to be normalized twice", remedy
        )
    layers = _normalization_layers(subject.model)
    mean, std = subject.first_layer_input
    if not (
        _matches_double_normalization(subject, mean, std)
        or (len(layers) >= 2 and std >= DOUBLE_NORMALIZED_STD)
    ):
        return None
    return make_finding(
        normalized_twice,
        "warning",
        f"the input seems to be normalized twice: the first layer receives mean {mean:.2f} and "
        f"std {std:.2f}, and {len(layers)} normalization layers were found",
        remedy,
        {"layers": len(layers), "mean": mean, "std": std},
    )


@CHECKS.register("not_normalized", tags=("model",))
def not_normalized(subject: ModelUnderTest) -> Finding | None:
    """The input is not normalized: accuracy rises when it is."""
    transforms = [
        InputTransform(name, lambda x, m=mean, s=std: (x - m) / s)  # type: ignore[misc]
        for name, mean, std in _candidate_statistics(subject)
    ]
    if (change := _best_transform(subject, transforms)) is None:
        return None
    remedy = "put the mean and std of training into the first layer of the model (mean=, std=)"
    return _accuracy_gain_finding(
        not_normalized, change, "the input seems not to be normalized", remedy
    )


@CHECKS.register("wrong_input_range", tags=("model",))
def wrong_input_range(subject: ModelUnderTest) -> Finding | None:
    """The model expects pixel values up to 255 or inverted, or another order of the pixels."""
    transforms = [
        InputTransform("pixel values up to 255", lambda x: 255 * x),
        InputTransform("inverted pixel values", lambda x: 1 - x),
    ]
    if subject.x.shape[1] == 3:
        transforms.append(InputTransform("channels in BGR order", lambda x: x.flip(1)))
    if subject.x.shape[2] == subject.x.shape[3]:
        transforms.append(InputTransform("rows and columns swapped", lambda x: x.mT))
    if (change := _best_transform(subject, transforms)) is None:
        return None
    message = "the model seems to expect another pixel range or order of the pixels"
    return _accuracy_gain_finding(
        wrong_input_range, change, message, "convert the images in the first layer of the model"
    )


def _matches_double_normalization(subject: ModelUnderTest, mean: float, std: float) -> bool:
    """Normalized once, images have mean 0 and std 1; twice, -mean / std and 1 / std."""
    m, s = (sum(v) / len(v) for v in (subject.data.mean, subject.data.std))
    return abs(std * s - 1) < RELATIVE_TOLERANCE and abs(mean + m / s) < RELATIVE_TOLERANCE * m / s


def _accuracy_gain_finding(
    check: CheckFunction, change: AccuracyChange, message: str, remedy: str
) -> Finding:
    return make_finding(
        check,
        "untrustworthy",
        f"{message}: clean accuracy rises from {change.before:.1%} to "
        f"{change.after:.1%} with {change.transform}",
        remedy,
        {"before": change.before, "after": change.after, "input_transform": change.transform},
    )


def _best_transform(
    subject: ModelUnderTest, transforms: Sequence[InputTransform]
) -> AccuracyChange | None:
    """The transform with a significantly higher clean accuracy, if any.

    Labels in another order have their own finding: other images cannot mend them.
    """
    predictions, labels = (v.cpu().numpy() for v in (subject.logits.argmax(1), subject.y))
    if label_permutation(predictions, labels):
        return None
    improvements, wrong = [], int((~subject.is_correct).sum())
    for transform in transforms if _is_large_gain(subject, wrong, 0) else ():
        gained = _count_gained(subject, transform)
        if gained is None:
            continue
        right = len(subject.y) - wrong
        lost = right - _count_correct(subject, transform, subject.is_correct)
        if _is_large_gain(subject, gained, lost):
            before, after = ((right + k) / len(subject.y) for k in (0, gained - lost))
            improvements.append(AccuracyChange(transform.name, before, after))
    return max(improvements, key=lambda s: s.after, default=None)


def _is_large_gain(subject: ModelUnderTest, gained: int, lost: int) -> bool:
    gain = gained - lost
    is_significant = gain >= MIN_Z_SCORE * math.sqrt(gained + lost)
    return gained > 0 and is_significant and gain >= MIN_GAIN * len(subject.y)


def _count_gained(subject: ModelUnderTest, transform: InputTransform) -> int | None:
    """Misclassified images that a transform mends; None once they cannot be enough."""
    gained, positions = 0, (~subject.is_correct).nonzero()[:, 0]
    for part in positions.split(GAIN_BATCH):
        mask = torch.zeros_like(subject.is_correct)
        mask[part] = True
        gained += _count_correct(subject, transform, mask)
        positions = positions[len(part) :]
        if not _is_large_gain(subject, gained + len(positions), 0):
            return None
    return gained


def _count_correct(subject: ModelUnderTest, transform: InputTransform, mask: Tensor) -> int:
    """How many of the images in ``mask`` are classified correctly when transformed."""
    if not mask.any():
        return 0
    logits = subject.compute_logits(transform.apply(subject.x[mask]))
    return int((logits.argmax(1) == subject.y[mask]).sum())


def _candidate_statistics(subject: ModelUnderTest) -> list[tuple[str, Tensor, Tensor]]:
    """Candidate mean and std: of the dataset, common ones, and those of the model's own layers."""
    x = subject.x
    pairs = [("the mean and std of the dataset", subject.data.mean, subject.data.std)]
    pairs += [(name, m, s) for name, m, s in COMMON_STATISTICS if len(m) in (1, x.shape[1])]
    candidates = [(n, _per_channel(m, x), _per_channel(s, x)) for n, m, s in pairs]
    for layer in _normalization_layers(subject.model)[:2]:
        mean, std = (torch.as_tensor(v).flatten().tolist() for v in (layer.mean, layer.std))
        if len(mean) in (1, x.shape[1]) and len(std) == len(mean):
            candidates.append(
                (
                    "the mean and std of the model's own layer",
                    _per_channel(mean, x),
                    _per_channel(std, x),
                )
            )
    return candidates


def _normalization_layers(model: nn.Module) -> list[nn.Module]:
    """Modules with a mean and a std other than 0 and 1."""
    layers = []
    for module in model.modules():
        mean, std = getattr(module, "mean", None), getattr(module, "std", None)
        if isinstance(mean, (Tensor, tuple, list)) and isinstance(std, (Tensor, tuple, list)):
            values = [torch.as_tensor(v).float() for v in (mean, std)]
            if bool((values[0] != 0).any() or (values[1] != 1).any()):
                layers.append(module)
    return layers


def _per_channel(values: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=x.dtype, device=x.device).view(-1, 1, 1)
