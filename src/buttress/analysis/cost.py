"""Cost of an analysis, reported before it starts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from buttress.analysis.subject import AnalysisSubject, CostScope
from buttress.attacks.core import Attack
from buttress.models.eval_mode import eval_mode, to_model_device

TIMING_BATCH = 32  # images in the batch that is timed


@dataclass(frozen=True)
class PassCount:
    """Forward and backward passes of single images."""

    forward: float
    backward: float = 0.0  # a backward pass includes the forward pass before it

    def __add__(self, other: PassCount) -> PassCount:
        return PassCount(self.forward + other.forward, self.backward + other.backward)


def attack_passes(attack: Attack, scope: CostScope, images: int, *, looks: int = 0) -> PassCount:
    """Upper bound of an attack's passes, reached on images that stay robust.

    ``looks`` is how many more forward passes each image takes, before and after the attack.
    """
    total = PassCount(images * (1 + looks))  # the attack looks at the clean images too
    for part in attack.stages(scope.threat, scope.num_classes):
        evaluations = images * part.num_runs(scope.num_classes) * part.eot_samples
        steps, last = evaluations * part.max_steps, PassCount(evaluations)
        total += last + (PassCount(0, steps) if part.needs_grad else PassCount(steps))
    return total


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
    return (passes.forward * forward + passes.backward * forward_and_backward) / len(x)


def format_cost(costs: Iterable[tuple[AnalysisSubject, PassCount]]) -> str:
    """``12,800 forward and 12,800 backward passes, about 4 s``; each model is timed."""
    total, seconds = PassCount(0), 0.0
    for subject, passes in costs:
        total += passes
        seconds += estimate_seconds(passes, subject) if passes != PassCount(0) else 0.0
    parts = [f"{total.forward:,.0f} forward"] * bool(total.forward)
    parts += [f"{total.backward:,.0f} backward"] * bool(total.backward)
    if not parts:
        return "no forward passes"
    return f"{' and '.join(parts)} passes, about {max(seconds, 0.1):.3g} s"
