"""Checks on gradients: missing, zero, saturated, or not increasing the loss."""

from __future__ import annotations

import math

import torch

from buttress.attacks.core import Attack, create_attack
from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem
from buttress.engine.last_iterate import last_iterate
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.evaluation.doctor.attack_results import CHANCE_FACTOR
from buttress.evaluation.doctor.core import CHECKS, PROBE_IMAGES, ModelUnderTest, make_finding
from buttress.models.eval_mode import eval_mode
from buttress.results.diagnosis import Finding
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import TINY, NormBall

MAX_FLAT_FRACTION = 0.1  # of the images: fewer hardly change an accuracy
TARGET_MARGIN = 1.0  # mean logit margin after scaling, at which the softmax does not saturate


@CHECKS.register("no_gradient_path", tags=("model",), paper="arXiv:1802.00420")
def no_gradient_path(subject: ModelUnderTest) -> Finding | None:
    """No gradient reaches the input."""
    if subject.is_black_box or subject.input_gradient is not None:
        return None
    return make_finding(
        no_gradient_path,
        "untrustworthy",
        "no gradient reaches the input: a layer is detached from the graph, so gradient-based "
        "attacks cannot work",
        "look for detach(), no_grad(), .data, numpy or integer arithmetic in the forward pass",
        {"flat_gradient_fraction": 1.0},
    )


@CHECKS.register("zero_gradient", tags=("model",), paper="arXiv:1802.00420")
def zero_gradient(subject: ModelUnderTest) -> Finding | None:
    """Input gradients are zero for many images, and not because logits are large."""
    fraction, tempered = flat_gradient_fractions(subject)
    if tempered <= MAX_FLAT_FRACTION:
        return None
    return make_finding(
        zero_gradient,
        "untrustworthy",
        f"the input gradient is exactly zero for {fraction:.0%} of the probed images (gradient "
        "masking): robust accuracy is likely overestimated",
        "look for rounding, quantization, thresholds or dead units; use a black-box attack "
        "(square), or a smooth approximation in the backward pass (BPDA)",
        {"flat_gradient_fraction": fraction, "flat_gradient_fraction_tempered": tempered},
    )


@CHECKS.register("saturated_gradient", tags=("model",), paper="arXiv:1608.04644")
def saturated_gradient(subject: ModelUnderTest) -> Finding | None:
    """Input gradients vanish because large logits saturate the softmax."""
    fraction, tempered = flat_gradient_fractions(subject)
    if fraction <= MAX_FLAT_FRACTION or tempered > MAX_FLAT_FRACTION:
        return None
    divisor = logit_temperature(subject)
    return make_finding(
        saturated_gradient,
        "untrustworthy",
        f"the gradient of the cross-entropy vanishes for {fraction:.0%} of the probed images, "
        f"but not when logits are divided by {divisor:.3g}: the logits are so large that "
        "the softmax saturates (exactly zero in single precision)",
        "use margin-based losses (fast, apgd-t, autoattack), or scale the logits down",
        {
            "flat_gradient_fraction": fraction,
            "flat_gradient_fraction_tempered": tempered,
            "logit_temperature": divisor,
        },
    )


def flat_gradient_fractions(subject: ModelUnderTest) -> tuple[float, float]:
    """Fraction of images with a zero gradient, without and with logits scaled down."""
    if subject.input_gradient is None or not subject.input_gradient.isfinite().all():
        return 0.0, 0.0  # each has its own finding
    fraction = _flat_fraction(subject.input_gradient)
    if fraction <= MAX_FLAT_FRACTION:
        return fraction, fraction
    tempered = subject.input_gradients(logit_temperature(subject))
    assert tempered is not None
    return fraction, _flat_fraction(tempered)


def logit_temperature(subject: ModelUnderTest) -> float:
    """Divisor of the logits that makes their mean margin `TARGET_MARGIN`."""
    mean_margin = (
        margin(subject.logits[:PROBE_IMAGES].float(), subject.y[:PROBE_IMAGES]).abs().mean()
    )
    divisor = float(mean_margin) / TARGET_MARGIN
    return divisor if math.isfinite(divisor) and divisor > 1 else 1.0


def _flat_fraction(gradient: torch.Tensor) -> float:
    """Fraction of gradients with a norm of at most `TINY`, which cannot be normalized."""
    return float((gradient.flatten(1).double().norm(dim=1) <= TINY).float().mean())


ASCENT_ARGS: dict[str, object] = {"steps": 10, "rel_step": 0.1, "start": "clean"}
# Of the images: where ten small steps along the gradient do not raise the margin.
MAX_STUCK_FRACTION = 0.2
MIN_STUCK = 3  # images: on few images one or two may be chance
UNBOUNDED_PGD_ARGS: dict[str, object] = {"steps": 20, "rel_step": 0.25, "restarts": 2}
MAX_ROBUST_FRACTION = 0.05  # of the images may be robust at an eps that reaches the gray image
MIN_ROBUST = 2  # images: on few images one may be chance


@CHECKS.register("loss_does_not_increase", tags=("attack",), paper="arXiv:1902.06705")
def loss_does_not_increase(subject: ModelUnderTest) -> Finding | None:
    """Small gradient steps do not increase the margin loss."""
    x, y = subject.x[:PROBE_IMAGES], subject.y[:PROBE_IMAGES]
    ids = subject.data.ids[:PROBE_IMAGES]
    rng = SampleRNG(subject.seed, "doctor", ids)
    problem = Problem(subject.model, x, y, subject.threat, rng, eot_samples=subject.averaged_passes)
    with eval_mode(subject.model):
        last_point = last_iterate(_ascent_attack(), problem)
    margin_increase = margin(subject.compute_logits(last_point), y) - margin(
        subject.logits[:PROBE_IMAGES], y
    )
    is_correct = subject.is_correct[:PROBE_IMAGES]
    if not is_correct.any():
        return None
    is_stuck = margin_increase[is_correct] <= 0
    stuck = float(is_stuck.float().mean())
    if stuck <= MAX_STUCK_FRACTION or int(is_stuck.sum()) < min(MIN_STUCK, len(is_stuck)):
        return None
    return make_finding(
        loss_does_not_increase,
        "untrustworthy",
        f"{ASCENT_ARGS['steps']} small gradient steps do not increase the margin loss of "
        f"{stuck:.0%} of the images: the gradient does not point uphill",
        "look for randomness, rounding, saturation or a detached layer; use a black-box attack "
        "(square)",
        {
            "stuck_fraction": stuck,
            "mean_margin_increase": float(margin_increase[is_correct].mean()),
        },
    )


@CHECKS.register("robust_at_any_eps", tags=("attack",), paper="arXiv:1902.06705")
def robust_at_any_eps(subject: ModelUnderTest) -> Finding | None:
    """Images are robust at an eps at which each can become the same gray image."""
    x, y = subject.x[:PROBE_IMAGES], subject.y[:PROBE_IMAGES]
    norm = subject.threat.norm
    distance_to_gray = subject.threat.perturbation_size(x, x.new_full(x.shape, 0.5))
    threat = NormBall(norm, 0.5 if norm == "Linf" else float(distance_to_gray.max()))
    options = AttackOptions(subject.seed, stop_when_fooled=True)
    ids = subject.data.ids[:PROBE_IMAGES]
    out = run_attack(
        create_attack("pgd", **UNBOUNDED_PGD_ARGS, eot_samples=subject.averaged_passes),
        subject.model,
        x,
        y,
        threat,
        ids=ids,
        options=options,
    )
    robust_fraction = 1 - float(out.fooled.float().mean())
    chance = 1 / subject.data.num_classes
    if (
        robust_fraction <= MAX_ROBUST_FRACTION
        or int((~out.fooled).sum()) < min(MIN_ROBUST, len(x))
        or float(subject.is_correct.float().mean()) <= CHANCE_FACTOR * chance
    ):
        return None
    return make_finding(
        robust_at_any_eps,
        "untrustworthy",
        f"{robust_fraction:.0%} of the images are robust to PGD at {threat}, where each can be "
        "turned into the same gray image: the attack fails (gradient masking)",
        "look for gradient masking: randomness, rounding, saturation or a detached layer",
        {"robust_fraction": robust_fraction, "eps": threat.eps},
    )


def _ascent_attack() -> Attack:
    return create_attack("pgd", **ASCENT_ARGS)
