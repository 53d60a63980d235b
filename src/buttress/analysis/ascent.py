"""The loss along an attack: what its last point would be had it stopped after any step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.core import Attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.attacks.loop import last_point
from buttress.attacks.losses import cross_entropy
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import Problem, Seen
from buttress.data import Batch
from buttress.progress import Task
from buttress.streams import Streams
from buttress.threat import Threat


@dataclass(frozen=True)
class Ascents:
    """Attacks on the same images from several random starts."""

    batch: Batch
    threat: Threat
    seeds: tuple[int, ...]
    task: Task

    def losses(self, model: nn.Module, steps: int, rel_step: float) -> Tensor:
        """(seeds, steps + 1) mean cross-entropy at the start and after each step of PGD."""
        found = []
        for seed in self.seeds:
            attack = PGD(steps=steps, rel_step=rel_step)
            found.append(losses_along(attack, model, self.batch, self.threat, seed).mean(1))
            self.task.advance(steps)
        return torch.stack(found)


def losses_along(
    attack: Attack, model: nn.Module, batch: Batch, threat: Threat, seed: int
) -> Tensor:
    """(steps + 1, N) cross-entropy at the start and after each step.

    The last iterate, as training uses it, not the best one: so the loss may fall. Steps of a set
    length make the first k points the same for an attack of k steps and for a longer one.
    """
    x = on_device_of(model, batch.x)
    y = batch.y.to(x.device)
    found: list[Tensor] = []

    def watch(seen: Seen) -> None:
        found.append(cross_entropy(seen.logits.detach(), y))

    with frozen(model):
        problem = Problem(model, x, y, threat, Streams(seed, "pgd", batch.ids))
        last = last_point(attack, problem, watch)
        found.append(loss_at(model, last, y))
    return torch.stack(found).double().cpu()


def loss_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N,) cross-entropy."""
    with frozen(model), torch.no_grad():
        return cross_entropy(model(x), y)
