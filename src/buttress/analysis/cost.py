"""What an analysis will cost, said before it starts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from buttress.analysis.subject import Subject
from buttress.attacks.core import Attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.attacks.problem import Problem
from buttress.streams import Streams

PROBE = 32  # images in the batch that is timed


@dataclass(frozen=True)
class Passes:
    """Passes of single images through the network."""

    forward: float
    backward: float = 0.0  # a backward pass includes the forward pass before it

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward)


def passes_of(attack: Attack, subject: Subject, images: int) -> Passes:
    """What an attack costs at most: for images that survive it."""
    x, y, ids = subject.data.take(torch.arange(min(1, len(subject.data))))
    clean = torch.zeros(len(x), subject.data.num_classes)
    problem = Problem(subject.model, x, y, subject.threat, Streams(0, "", ids), clean)
    total = Passes(images)  # the clean images
    for part in attack.parts(problem):
        looks = images * part.runs(problem) * part.passes
        steps, last = looks * part.length, Passes(looks)
        total += last + (Passes(0, steps) if part.needs_grad else Passes(steps))
    return total


def seconds_for(passes: Passes, subject: Subject) -> float:
    """About how long passes take here, from one timed batch of the subject."""
    x, y, _ = subject.data.take(torch.arange(min(PROBE, len(subject.data))))
    x = on_device_of(subject.model, x)
    y = y.to(x.device)
    with frozen(subject.model):
        for _ in range(2):  # the first pass also sets things up
            started = time.perf_counter()
            point = x.clone().requires_grad_(True)
            logits = subject.model(point)
            forward = time.perf_counter() - started
            torch.autograd.grad(F.cross_entropy(logits, y), point, allow_unused=True)
            both = time.perf_counter() - started
    return (passes.forward * forward + passes.backward * both) / len(x)


def cost_in_words(shares: Iterable[tuple[Subject, Passes]]) -> str:
    """``12,800 forward and 12,800 backward passes, about 4 s``; each network is timed."""
    total, seconds = Passes(0), 0.0
    for subject, passes in shares:
        total += passes
        seconds += seconds_for(passes, subject) if passes != Passes(0) else 0.0
    parts = [f"{total.forward:,.0f} forward"] * bool(total.forward)
    parts += [f"{total.backward:,.0f} backward"] * bool(total.backward)
    if not parts:
        return "no passes through a network"
    return f"{' and '.join(parts)} passes, about {max(seconds, 0.1):.3g} s"
