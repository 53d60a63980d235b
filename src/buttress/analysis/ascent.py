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

ROWS = 128  # images and seeds that pass together, at most


@dataclass(frozen=True)
class Ascents:
    """Attacks on the same images from several random starts."""

    batch: Batch
    threat: Threat
    seeds: tuple[int, ...]
    task: Task

    def losses(self, model: nn.Module, steps: int, rel_step: float) -> Tensor:
        """(seeds, steps + 1) mean cross-entropy at the start and after each step of PGD."""
        found, attack = [], PGD(steps=steps, rel_step=rel_step)
        at_once = max(1, ROWS // len(self.batch.x))
        for first in range(0, len(self.seeds), at_once):
            some = self.seeds[first : first + at_once]
            found.append(losses_along(attack, model, self.batch, self.threat, some).mean(2))
            self.task.advance(steps * len(some))
        return torch.cat(found)


@dataclass(frozen=True)
class Seeded(Streams):
    """The streams of the same samples under several seeds, one seed after another."""

    seeds: tuple[int, ...] = ()

    def keys(self, use: int | str | Tensor) -> Tensor:
        """Those that each seed alone would give."""
        count = len(self.seeds)
        uses = use.chunk(count) if isinstance(use, Tensor) else [use] * count
        parts = zip(self.seeds, self.ids.chunk(count), uses, strict=True)
        return torch.cat([Streams(seed, self.purpose, ids).keys(u) for seed, ids, u in parts])


def losses_along(
    attack: Attack, model: nn.Module, batch: Batch, threat: Threat, seeds: tuple[int, ...]
) -> Tensor:
    """(seeds, steps + 1, N) cross-entropy at the start and after each step.

    The last iterate, as training uses it, not the best one: so the loss may fall. Steps of a set
    length make the first k points the same for an attack of k steps and for a longer one. All seeds
    pass together: small batches leave a processor idle.
    """
    count = len(seeds)
    x = on_device_of(model, batch.x).repeat(count, 1, 1, 1)
    y = batch.y.to(x.device).repeat(count)
    found: list[Tensor] = []

    def watch(seen: Seen) -> None:
        found.append(cross_entropy(seen.logits.detach(), y))

    with frozen(model):
        streams = Seeded(0, "pgd", batch.ids.repeat(count), seeds)
        last = last_point(attack, Problem(model, x, y, threat, streams), watch)
        found.append(loss_at(model, last, y))
    return torch.stack(found, 1).view(count, -1, len(found)).mT.double().cpu()


def loss_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N,) cross-entropy."""
    with frozen(model), torch.no_grad():
        return cross_entropy(model(x), y)
