"""What a check is: it looks at a model or at records and returns a finding, or nothing.

There are four kinds, told by their tag: ``look`` needs a few passes over some images (`Patient`),
``ball`` asks about the threat (`Patient`), ``records`` compares what attacks did (`Chart`), and
``attack`` attacks the model (`Patient`). Evaluations run all but the last by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from buttress.attacks.core import ATTACKS
from buttress.attacks.freeze import frozen, gives_gradients, on_device_of
from buttress.attacks.losses import cross_entropy
from buttress.data import Dataset
from buttress.records.diagnosis import Evidence, Finding, Severity
from buttress.records.evaluation import AttackRecord
from buttress.registry import Registry
from buttress.threat import Threat

Check = Callable[..., Finding | None]  # of a Patient or of a Chart
CHECKS: Registry[Check] = Registry("check")

LOOK = 64  # images at once: more would not fit where images are large
CLEAN = "clean"


def list_checks(tag: str | None = None) -> list[str]:
    return CHECKS.names(tag)


def finding(
    check: Check, severity: Severity, said: str, remedy: str, evidence: Evidence
) -> Finding:
    """A finding under the name that its check is registered with."""
    name = next(e.name for e in CHECKS if e.value is check)
    return Finding(name=name, severity=severity, said=said, remedy=remedy, evidence=evidence)


@dataclass(frozen=True)
class Patient:
    """A model and the images it is looked at with; what several checks need is computed once."""

    model: nn.Module
    data: Dataset
    threat: Threat
    seed: int = 0
    passes: int = 1  # that the weakest attack of an evaluation averages, for randomised models

    @cached_property
    def x(self) -> Tensor:
        return on_device_of(self.model, self.data.take(torch.arange(len(self.data))).x)

    @cached_property
    def y(self) -> Tensor:
        return self.data.labels.to(self.x.device)

    def answer(self, x: Tensor) -> Tensor:
        """(N, K) logits, in evaluation mode."""
        with frozen(self.model), torch.no_grad():
            return torch.cat([self.model(part) for part in x.split(LOOK)])

    @cached_property
    def logits(self) -> Tensor:
        return self.answer(self.x)

    @property
    def right(self) -> Tensor:
        return self.logits.argmax(1) == self.y

    def slopes(self, temperature: float = 1.0) -> Tensor | None:
        """(n, C, H, W) gradients of the cross-entropy of the first images; None if there is no way.

        Logits are divided by the temperature first.
        """
        if self.is_black_box:
            return None
        point = self.x[:LOOK].detach().clone().requires_grad_(True)
        with frozen(self.model), torch.enable_grad():
            logits = self.model(point)
            if not logits.requires_grad:
                return None
            total = cross_entropy(logits / temperature, self.y[:LOOK]).sum()
            (slope,) = torch.autograd.grad(total, point, allow_unused=True)
        return None if slope is None else slope.detach()

    @property
    def is_black_box(self) -> bool:
        """Whether the model never gives gradients, and says so."""
        return not gives_gradients(self.model)

    @cached_property
    def slope(self) -> Tensor | None:
        return self.slopes()


@dataclass(frozen=True)
class Chart:
    """What attacks did to the same images of one model."""

    records: Sequence[AttackRecord]

    @property
    def clean(self) -> AttackRecord | None:
        return next((r for r in self.records if r.name == CLEAN), None)

    @property
    def groups(self) -> dict[str, list[AttackRecord]]:
        """The attacks of each threat."""
        found: dict[str, list[AttackRecord]] = {}
        for record in self.records:
            if threat := record.meta.get("threat"):
                found.setdefault(threat, []).append(record)
        return found


def tagged(records: Sequence[AttackRecord], *tags: str) -> list[AttackRecord]:
    """The records of attacks that have one of the tags."""
    return [r for r in records if set(tags) & set(tags_of(r))]


def tags_of(record: AttackRecord) -> tuple[str, ...]:
    name = str(record.meta.get("attack", ""))
    return ATTACKS.entry(name).tags if name in ATTACKS else ()
