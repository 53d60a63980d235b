"""Checks: functions of a model or of attack records that return a finding or None.

There are five kinds, given by a tag: ``data`` checks the images (`EvaluatedImages`); ``model``
needs a few passes over some images, ``threat`` checks the threat model and ``attack`` attacks the
model (all take a `ModelUnderTest`); ``records`` compares attack records (`AttackRecords`).
Evaluations run all of them, ``attack`` once per norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from buttress.attacks.core import ATTACKS
from buttress.attacks.losses import cross_entropy, margin
from buttress.data import Dataset
from buttress.evaluation.doctor.first_layer import InputStatistics, record_first_layer_input
from buttress.models.eval_mode import eval_mode, is_differentiable, to_model_device
from buttress.registry import Registry
from buttress.results.attack_record import AttackRecord
from buttress.results.core import CLEAN
from buttress.results.diagnosis import (
    Evidence,
    Finding,
    FindingSeverity,
    deduplicate_findings,
)
from buttress.threats.norm_ball import NormBall

CheckFunction = Callable[..., Finding | None]  # of the subject of its kind
CHECKS: Registry[CheckFunction] = Registry("check")

PROBE_IMAGES = 64  # per batch: more may not fit into memory
GRADIENT_IMAGES = 16  # whose gradients are compared with finite differences


def list_checks(tag: str | None = None) -> list[str]:
    return CHECKS.names(tag)


def make_finding(
    check: CheckFunction, severity: FindingSeverity, message: str, remedy: str, evidence: Evidence
) -> Finding:
    """Make a finding with the name that its check is registered with."""
    name = next(e.name for e in CHECKS if e.value is check)
    return Finding(check=name, severity=severity, message=message, remedy=remedy, evidence=evidence)


class MarginGradients(NamedTuple):
    """Images, the margins of their logits and the gradients of these margins."""

    x: Tensor
    margins: Tensor
    gradients: Tensor


@dataclass(frozen=True)
class ModelUnderTest:
    """A model and the images to check it on; shared results are cached."""

    model: nn.Module
    data: Dataset
    threat: NormBall
    seed: int = 0
    # Fewest passes that an attack of the evaluation averages, for randomized models.
    averaged_passes: int = 1
    repeated_images: int = PROBE_IMAGES  # that checks of the outputs pass several times

    @cached_property
    def x(self) -> Tensor:
        return to_model_device(self.model, self.data.take(torch.arange(len(self.data))).x)

    @cached_property
    def repeated_x(self) -> Tensor:
        """Images that are passed several times, spread: only some may meet what is random."""
        return self.x[:: max(1, len(self.x) // self.repeated_images)][: self.repeated_images]

    @cached_property
    def y(self) -> Tensor:
        return self.data.labels.to(self.x.device)

    def compute_logits(self, x: Tensor) -> Tensor:
        """(N, K) logits, in evaluation mode."""
        with eval_mode(self.model), torch.no_grad():
            return torch.cat([self.model(part) for part in x.split(PROBE_IMAGES)])

    @property
    def logits(self) -> Tensor:
        return self._logits_and_first_input[0]

    @property
    def first_layer_input(self) -> InputStatistics:
        """What the first convolution or linear layer receives."""
        return self._logits_and_first_input[1]

    @cached_property
    def _logits_and_first_input(self) -> tuple[Tensor, InputStatistics]:
        with record_first_layer_input(self.model) as inputs:
            logits = self.compute_logits(self.x)
        return logits, inputs[0] if inputs else InputStatistics(math.nan, math.nan)

    @property
    def is_correct(self) -> Tensor:
        return self.logits.argmax(1) == self.y

    def input_gradients(self, temperature: float = 1.0) -> Tensor | None:
        """(n, C, H, W) gradients of the cross-entropy of the first images; None if undefined.

        Logits are divided by the temperature first.
        """
        if self.is_black_box:
            return None
        x = self.x[:PROBE_IMAGES].detach().clone().requires_grad_(True)
        with eval_mode(self.model), torch.enable_grad():
            logits = self.model(x)
            if not logits.requires_grad:
                return None
            total = cross_entropy(logits / temperature, self.y[:PROBE_IMAGES]).sum()
            (gradient,) = torch.autograd.grad(total, x, allow_unused=True)
        return None if gradient is None else gradient.detach()

    @cached_property
    def margin_gradients(self) -> MarginGradients | None:
        """Margins and their gradients at the first images, moved inside of the pixel range."""
        if self.is_black_box:
            return None
        x = self.x[:GRADIENT_IMAGES].detach().clamp(0.01, 0.99).requires_grad_(True)
        with eval_mode(self.model), torch.enable_grad():
            logits = self.model(x)
            if not logits.requires_grad:
                return None
            margins = margin(logits, self.y[:GRADIENT_IMAGES])
            (gradient,) = torch.autograd.grad(margins.sum(), x, allow_unused=True)
        if gradient is None:
            return None
        return MarginGradients(x.detach(), margins.detach(), gradient.detach())

    @property
    def is_black_box(self) -> bool:
        """Whether the model is declared not differentiable."""
        return not is_differentiable(self.model)

    @cached_property
    def input_gradient(self) -> Tensor | None:
        return self.input_gradients()


@dataclass(frozen=True)
class AttackRecords:
    """Records of attacks on the same images and model."""

    records: Sequence[AttackRecord]

    @property
    def clean(self) -> AttackRecord | None:
        return next((r for r in self.records if r.name == CLEAN), None)

    @property
    def by_threat(self) -> dict[str, list[AttackRecord]]:
        """Records of attacks, by threat model."""
        groups: dict[str, list[AttackRecord]] = {}
        for record in self.records:
            if threat := record.metadata.get("threat"):
                groups.setdefault(threat, []).append(record)
        return groups


def with_attack_tags(records: Sequence[AttackRecord], *tags: str) -> list[AttackRecord]:
    """Select records of attacks with at least one of the tags."""
    return [r for r in records if set(tags) & set(attack_tags(r))]


def attack_tags(record: AttackRecord) -> tuple[str, ...]:
    name = str(record.metadata.get("attack", ""))
    return ATTACKS.entry(name).tags if name in ATTACKS else ()


# The order in which they are run: a model with the wrong number of classes cannot be attacked.
CHECK_KINDS = ("data", "model", "threat", "attack", "records")
CLASS_COUNT_CHECK = "class_count"


def checks_of_kind(kind: str) -> list[str]:
    """Names of the checks of a kind, in the order in which they run."""
    return sorted(CHECKS.names(kind), key=lambda name: name != CLASS_COUNT_CHECK)


def run_checks(subject: object, kind: str) -> list[Finding]:
    """Run the checks of a kind and return their findings."""
    results = (CHECKS.get(name)(subject) for name in checks_of_kind(kind))
    return [f for f in results if f is not None]


def add_record_findings(record: AttackRecord, previous: Sequence[AttackRecord]) -> AttackRecord:
    """Add findings about a record and those before it, except findings they have already."""
    known_findings = {f.check: f for r in previous for f in r.findings}
    findings = list(record.findings)
    for finding in run_checks(AttackRecords([*previous, record]), "records"):
        if (
            finding.check not in known_findings
            or deduplicate_findings([known_findings[finding.check], finding])[0] == finding
        ):
            findings.append(finding)
    return with_findings(record, findings)


def recompute_record_findings(records: Mapping[str, AttackRecord]) -> dict[str, AttackRecord]:
    """Run the checks on records again, for records merged from parts."""
    updated: dict[str, AttackRecord] = {}
    for name, record in records.items():
        other_findings = [f for f in record.findings if "records" not in check_tags(f)]
        updated[name] = add_record_findings(
            with_findings(record, other_findings), list(updated.values())
        )
    return updated


def with_findings(record: AttackRecord, findings: Iterable[Finding]) -> AttackRecord:
    dumped = [f.model_dump(mode="json") for f in findings]
    return replace(record, metadata={**record.metadata, "findings": dumped})


def check_tags(finding: Finding) -> tuple[str, ...]:
    return CHECKS.entry(finding.check).tags if finding.check in CHECKS else ()
