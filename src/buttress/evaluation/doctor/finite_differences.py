"""Checks that compare gradients with finite differences of the outputs, near and farther off."""

from __future__ import annotations

import math

import torch

from buttress.attacks.losses import margin
from buttress.evaluation.doctor.core import CHECKS, MarginGradients, ModelUnderTest, make_finding
from buttress.models.surrogate import SurrogateModel
from buttress.results.diagnosis import Finding
from buttress.system.rng import make_generator
from buttress.threats.norm_ball import TINY, NormBall

DIFFERENCE_DIRECTIONS = 8  # per image, of random signs
DIFFERENCE_STEP = 1e-3  # of the pixel range: far above rounding, below most kinks
MIN_GRADIENT_COSINE = 0.5  # 1 for differentiable models, 0 +- 0.35 for an unrelated gradient
MIN_COARSE_COSINE = 0.3  # over half of eps; honest models stay above it in tests
COARSE_FRACTION = 0.5  # of eps: about as far as attacks follow one gradient ...
MAX_COARSE_STEP = 0.02  # ... and at most this, of the pixel range: beyond, honest models bend too
MAX_JUMP = 30.0  # times the change that the gradient predicts; about 1 in honest models
MAX_JUMPING_FRACTION = 0.1  # of the images
MIN_JUMPING = 2  # images: on few images one may be chance


@CHECKS.register("gradient_mismatch", tags=("attack",), paper="arXiv:1802.00420")
def gradient_mismatch(subject: ModelUnderTest) -> Finding | None:
    """The gradient differs from finite differences of the outputs."""
    gradients = _comparable_gradients(subject)
    measured = gradients and _difference_cosine(subject, gradients, DIFFERENCE_STEP)
    if not measured or measured[0] >= MIN_GRADIENT_COSINE:
        return None
    cosine, images = measured
    return make_finding(
        gradient_mismatch,
        "untrustworthy",
        "the gradient is not that of the outputs: its cosine similarity with finite differences "
        f"along {DIFFERENCE_DIRECTIONS} directions is {cosine:.2f} (median of {images} images), "
        "where 1 is expected",
        "look for rounding, randomness or a backward pass of its own in the model; use a black-box "
        "attack (square)",
        {"cosine_similarity": cosine, "images": images},
    )


@CHECKS.register("shattered_gradient", tags=("attack",), paper="arXiv:1802.00420")
def shattered_gradient(subject: ModelUnderTest) -> Finding | None:
    """The gradient is that of the outputs at a point, but not at the distances of attacks.

    Either finite differences over half of eps do not agree with it, as on ripples and stairs,
    or outputs jump within eps by far more than it predicts, as those of a vote.
    """
    gradients = _comparable_gradients(subject)
    step = coarse_step(subject.threat, subject.x[0].numel())
    measured = gradients and _difference_cosine(subject, gradients, step)
    if not gradients or not measured:
        return None
    cosine, images = measured
    jumping = _jumping_images(subject, gradients)
    is_jumping = jumping >= max(MIN_JUMPING, MAX_JUMPING_FRACTION * len(gradients.x))
    if cosine >= MIN_COARSE_COSINE and not is_jumping:
        return None
    reason = (
        f"one step of eps along it changes the margin of {jumping} of {len(gradients.x)} images "
        f"by more than {MAX_JUMP:.0f} times of what it predicts"
        if is_jumping
        else f"its cosine similarity with finite differences over {step:.2g} per value is "
        f"{cosine:.2f} (median of {images} images), where about 1 is expected"
    )
    return make_finding(
        shattered_gradient,
        "untrustworthy",
        f"the gradient does not describe the outputs at the distances of attacks: {reason}",
        "look for high frequencies, thresholds, votes or k-winners-take-all in the model; use a "
        "black-box attack (square)",
        {"cosine_similarity": cosine, "step": step, "jumping_images": jumping, "images": images},
    )


def coarse_step(threat: NormBall, size: int) -> float:
    """Change of each of ``size`` values that makes half of eps, within bounds."""
    norm_of_ones = {"Linf": 1.0, "L2": math.sqrt(size), "L1": float(size)}[threat.norm]
    step = COARSE_FRACTION * threat.eps / norm_of_ones
    return min(MAX_COARSE_STEP, max(DIFFERENCE_STEP, step))


def _comparable_gradients(subject: ModelUnderTest) -> MarginGradients | None:
    """Images and gradients of their margins; None if differences say nothing about them."""
    if subject.averaged_passes > 1 or isinstance(subject.model, SurrogateModel):
        return None  # noise hides small steps; the gradient of a surrogate differs on purpose
    if subject.logits.dtype not in (torch.float32, torch.float64):
        return None  # half precision hides small steps
    return subject.margin_gradients


def _difference_cosine(
    subject: ModelUnderTest, at: MarginGradients, step: float
) -> tuple[float, int] | None:
    """Cosine similarity with central differences, the median over images, and their number."""
    x, y = at.x, subject.y[: len(at.x)]
    shape = (DIFFERENCE_DIRECTIONS, *x.shape)
    generator = make_generator(subject.seed, "gradient mismatch")
    signs = (2 * torch.randint(0, 2, shape, generator=generator) - 1).to(x)
    measured = torch.stack(
        [
            margin(subject.compute_logits(x + step * d), y)
            - margin(subject.compute_logits(x - step * d), y)
            for d in signs
        ]
    ).double()
    predicted = (signs * at.gradients).flatten(2).double().sum(2)
    norms = measured.norm(dim=0) * predicted.norm(dim=0)
    is_defined = (norms > TINY) & norms.isfinite()
    if int(is_defined.sum()) < len(x) / 2:
        return None  # flat gradients and outputs have findings of their own
    cosine = float(((measured * predicted).sum(0) / norms)[is_defined].median())
    return cosine, int(is_defined.sum())


def _jumping_images(subject: ModelUnderTest, at: MarginGradients) -> int:
    """How many margins change far more than the gradient predicts, one step of eps away."""
    y, threat = subject.y[: len(at.x)], subject.threat
    moved = threat.project(at.x, at.x + threat.eps * threat.step_direction(at.x, at.gradients))
    change = margin(subject.compute_logits(moved), y) - at.margins
    predicted = (at.gradients * (moved - at.x)).flatten(1).double().sum(1).abs()
    return int(((predicted > TINY) & (change.double().abs() > MAX_JUMP * predicted)).sum())
