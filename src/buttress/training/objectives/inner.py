"""The inner problem of adversarial training: the worst images near those of a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.core import Attack
from buttress.attacks.freeze import frozen
from buttress.attacks.loop import Stay, last_point
from buttress.attacks.pgd import PGD, Start
from buttress.attacks.problem import Problem
from buttress.threat import Threat
from buttress.training.objectives.core import Found, Objective, Step

LEAST = 16  # images that are worth a thread


def worst_images(
    model: nn.Module, step: Step, attack: Attack, *, threat: Threat | None = None, stay: Stay = None
) -> Tensor:
    """The last point of an attack on the frozen network in evaluation mode; ``x`` if eps is zero.

    The attack moves no BatchNorm statistics and leaves no gradients. It sees the faster form of the
    network that the step brings along, if there is one. ``threat`` stands for the step's own;
    ``stay`` sees each step and may hold samples where they are.
    """
    threat, step = threat or step.threat, step.attacked()
    assert threat is not None
    if threat.eps == 0:
        return step.x
    with frozen(model):
        seen = model if step.searched is None else step.searched
        with torch.no_grad():
            clean = seen(step.x) if getattr(attack, "loss", "") == "kl" else None
        problem = Problem(seen, step.x, step.y, threat, step.streams, clean)
        if stay is not None or step.x.device.type != "cpu":
            return last_point(attack, problem, stay)
        return _in_threads(attack, problem)


def _in_threads(attack: Attack, problem: Problem) -> Tensor:
    """A part of the batch in each thread, which is faster than all threads in each operation."""
    count = min(torch.get_num_threads(), len(problem.x) // LEAST)
    if count <= 1:
        return last_point(attack, problem)
    parts = [problem.select(rows) for rows in problem.rows_of().tensor_split(count)]
    return torch.cat(list(_pool(count).map(partial(last_point, attack), parts)))


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attack", initializer=partial(torch.set_num_threads, 1))


@dataclass(frozen=True)
class Adversarial(Objective):
    """An objective that trains on what PGD finds."""

    needs_threat = True
    steps: int = 10
    rel_step: float = 0.25
    start: Start = "random"
    noise: float = 1e-3  # of a Gaussian start

    def __post_init__(self) -> None:
        PGD(steps=self.steps, rel_step=self.rel_step, start=self.start, noise=self.noise)

    def pgd(self, step: Step, **more: Any) -> PGD:
        """The attack, with steps that follow eps or stay as they are while it warms up."""
        length = self.rel_step * step.stretch
        return PGD(steps=self.steps, rel_step=length, start=self.start, noise=self.noise, **more)

    def search(self, model: nn.Module, step: Step) -> Found:
        return Found(worst_images(model, step, self.pgd(step)))

    def stronger(self) -> Adversarial:
        """Twice as many steps, which reach as far."""
        return replace(self, steps=2 * self.steps, rel_step=max(self.rel_step / 2, 0.25))
