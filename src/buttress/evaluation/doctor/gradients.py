"""Can an attack see where to go?"""

from __future__ import annotations

import math

import torch

from buttress.attacks.losses import margin
from buttress.evaluation.doctor.core import CHECKS, LOOK, Patient, finding
from buttress.records.diagnosis import Finding
from buttress.threat import TINY

BLIND = 0.1  # of the images: fewer flat ones barely move an accuracy
GENTLE = 1.0  # the mean margin between logits after they are divided: nothing saturates there


@CHECKS.register("no_gradient_path", tags=("look",), paper="arXiv:1802.00420")
def no_gradient_path(patient: Patient) -> Finding | None:
    """No gradient can reach the image."""
    if patient.is_black_box or patient.slope is not None:
        return None
    return finding(
        no_gradient_path,
        "untrustworthy",
        "no gradient reaches the image: a layer is detached from the graph, so the gradient of the "
        "loss is exactly zero for all images and gradient attacks see nothing",
        "look for detach(), no_grad(), .data, numpy or integer arithmetic in the forward pass",
        {"flat_images": 1.0},
    )


@CHECKS.register("zero_gradient", tags=("look",), paper="arXiv:1802.00420")
def zero_gradient(patient: Patient) -> Finding | None:
    """Gradients are zero for many images, and not because logits are large."""
    share, gentle = flat_shares(patient)
    if gentle <= BLIND:
        return None
    return finding(
        zero_gradient,
        "untrustworthy",
        f"the gradient of the loss is exactly zero for {share:.0%} of the images looked at: "
        "gradient attacks cannot see, so the robust accuracy is likely too high",
        "look for rounding, quantisation, thresholds or dead units; attack without gradients "
        "(square), or put a smooth function in their place for the backward pass",
        {"flat_images": share, "flat_images_gentle": gentle},
    )


@CHECKS.register("saturated_gradient", tags=("look",), paper="arXiv:1608.04644")
def saturated_gradient(patient: Patient) -> Finding | None:
    """Gradients vanish because logits are large, and come back when these are divided."""
    share, gentle = flat_shares(patient)
    if share <= BLIND or gentle > BLIND:
        return None
    divisor = temperature(patient)
    return finding(
        saturated_gradient,
        "untrustworthy",
        f"the gradient of the cross-entropy vanishes for {share:.0%} of the images looked at and "
        f"comes back when logits are divided by {divisor:.3g}: the logits are so large that the "
        "softmax saturates (exactly zero in single precision)",
        "use attacks on margins (fast, apgd-t, autoattack), or divide the logits",
        {"flat_images": share, "flat_images_gentle": gentle, "divided_by": divisor},
    )


def flat_shares(patient: Patient) -> tuple[float, float]:
    """The share of images without a usable gradient, as it is and with logits made small."""
    if patient.slope is None or not patient.slope.isfinite().all():
        return 0.0, 0.0  # each has its own finding
    share = _flat(patient.slope)
    if share <= BLIND:
        return share, share
    gentle = patient.slopes(temperature(patient))
    assert gentle is not None
    return share, _flat(gentle)


def temperature(patient: Patient) -> float:
    """What logits are divided by so that their mean margin is `GENTLE`."""
    gap = margin(patient.logits[:LOOK].float(), patient.y[:LOOK]).abs().mean()
    found = float(gap) / GENTLE
    return found if math.isfinite(found) and found > 1 else 1.0


def _flat(slope: torch.Tensor) -> float:
    """Steps of unit length divide by the norm plus `TINY`: below it they lose their length."""
    return float((slope.flatten(1).double().norm(dim=1) <= TINY).float().mean())
