"""Cost of an analysis, reported before it starts."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch.nn import functional as F

from buttress.analysis.subject import AnalysisSubject, CostScope
from buttress.attacks.core import Attack
from buttress.engine.cost import attack_passes as passes_per_image
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode, to_model_device

TIMING_BATCH = 32  # images in the batch that is timed


def attack_passes(attack: Attack, scope: CostScope, images: int, *, looks: int = 0) -> PassCount:
    """Upper bound of an attack's passes, reached on images that stay robust.

    ``looks`` is how many more forward passes each image takes, before and after the attack.
    """
    per_image = passes_per_image(attack, scope.threat, scope.num_classes)
    return (per_image + PassCount(looks)) * images


def estimate_seconds(passes: PassCount, subject: AnalysisSubject) -> float:
    """Estimate the seconds of passes from one timed batch of the subject."""
    x, y, _ = subject.data.take(torch.arange(min(TIMING_BATCH, len(subject.data))))
    x = to_model_device(subject.model, x)
    y = y.to(x.device)
    with eval_mode(subject.model):
        for _ in range(2):  # the first pass also sets things up
            started = time.perf_counter()
            point = x.clone().requires_grad_(True)
            logits = subject.model(point)
            forward = time.perf_counter() - started
            torch.autograd.grad(F.cross_entropy(logits, y), point, allow_unused=True)
            forward_and_backward = time.perf_counter() - started
    forward_only = passes.forward - passes.backward
    return (forward_only * forward + passes.backward * forward_and_backward) / len(x)


def format_cost(costs: Iterable[tuple[AnalysisSubject, PassCount]]) -> str:
    """``12,800 forward and 12,800 backward passes, about 4 s``; each model is timed."""
    total, seconds = PassCount(), 0.0
    for subject, passes in costs:
        total += passes
        seconds += estimate_seconds(passes, subject) if passes != PassCount() else 0.0
    parts = [f"{total.forward:,.0f} forward"] * bool(total.forward)
    parts += [f"{total.backward:,.0f} backward"] * bool(total.backward)
    if not parts:
        return "no forward passes"
    return f"{' and '.join(parts)} passes, about {max(seconds, 0.1):.3g} s"
