"""Models with one more output than classes, which rejects an image: attacked by a joint loss.

An attack on such a defence succeeds if the image is misclassified and not rejected. Attacks that
look at the classes alone are caught by the detector; an attack on both at once is the one to
count (arXiv:1705.07263).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.engine import AttackOptions, run_attack
from buttress.evaluation.doctor.core import ModelUnderTest
from buttress.models.eval_mode import eval_mode
from buttress.results.diagnosis import AdaptiveAttack, AdaptiveResult

JOINT_REASON = "joint loss of classes and rejection, because of class_count"
TAKEN_AS_REJECTION = "the last output is taken as the one that rejects an image"
SCORING_BATCH = 256


class ClassOutputs(nn.Module):
    """The logits of the classes alone, as if nothing were rejected."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)[:, :-1]
        return logits


class JointOutputs(ClassOutputs):
    r"""Logits for images of one label y, where a rejected image counts as classified correctly.

    The logit of y is :math:`\max(z_y, z_\mathrm{reject})`, so the margin is the joint loss
    :math:`\max_{k \ne y} z_k - \max(z_y, z_\mathrm{reject})`, and any attack can maximize it.
    """

    def __init__(self, model: nn.Module, label: int) -> None:
        super().__init__(model)
        self.label = label

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        is_label = torch.arange(logits.shape[1] - 1, device=logits.device) == self.label
        return torch.where(is_label, logits[:, :-1].maximum(logits[:, -1:]), logits[:, :-1])


def is_detector(subject: ModelUnderTest) -> bool:
    """Whether the model has exactly one output more than there are classes."""
    return subject.logits.shape[1] == subject.data.num_classes + 1


def attack_detector(
    subject: ModelUnderTest,
    usual_attacks: Sequence[tuple[str, str, dict[str, Any]]],
    adaptive_args: dict[str, Any],
    batch_size: int,
) -> tuple[dict[str, float], AdaptiveResult]:
    """Accuracies under the usual attacks on the classes, and after one on classes and rejection.

    ``usual_attacks`` are names, attacks and arguments. An image is robust if it is classified
    correctly and not rejected without an attack, and classified correctly or rejected under it.
    """
    options = AttackOptions(subject.seed, batch_size)
    is_robust = subject.logits.argmax(1).eq(subject.y).cpu().numpy()
    accuracies = {"clean": float(is_robust.mean())}
    worst_case = is_robust.copy()
    for name, attack, args in usual_attacks:
        found = run_attack(
            create_attack(attack, **args), ClassOutputs(subject.model), subject.x, subject.y,
            subject.threat, ids=subject.data.ids, options=options,
        )  # fmt: skip
        withstood = is_robust & ~_is_undetected(subject, found.x_adv)
        accuracies[name] = float(withstood.mean())
        worst_case &= withstood
    before = float(worst_case.mean())
    options = replace(options, stop_when_fooled=True)
    after = worst_case & ~_fooled_jointly(subject, worst_case, adaptive_args, options)
    result = AdaptiveResult(
        baseline=next(name for name, attack, _ in usual_attacks if attack == "pgd"),
        before=next(accuracies[name] for name, attack, _ in usual_attacks if attack == "pgd"),
        worst_case_before=before,
        attacks=(
            AdaptiveAttack(
                name="adaptive-pgd", attack="pgd", args=adaptive_args, reasons=(JOINT_REASON,),
                accuracy=float(after.mean()),
            ),
        ),
        notes=(TAKEN_AS_REJECTION, _rejection_note(subject)),
    )  # fmt: skip
    return accuracies, result


def _is_undetected(subject: ModelUnderTest, x_adv: Tensor) -> Any:
    """(N,) whether each image is misclassified and not rejected."""
    with eval_mode(subject.model), torch.no_grad():
        parts = [subject.model(part).argmax(1) for part in x_adv.split(SCORING_BATCH)]
    predicted, rejection = torch.cat(parts), subject.data.num_classes
    return ((predicted != subject.y) & (predicted != rejection)).cpu().numpy()


def _fooled_jointly(
    subject: ModelUnderTest, rows: Any, args: dict[str, Any], options: AttackOptions
) -> Any:
    """(N,) which of the images of some rows the joint attack fools, one label after the other."""
    fooled, labels = np.zeros(len(subject.y), dtype=bool), subject.y.cpu().numpy()
    for label in np.unique(labels[rows]).tolist():
        index = torch.from_numpy(np.flatnonzero(rows & (labels == label)))
        found = run_attack(
            create_attack("pgd", **args), JointOutputs(subject.model, label),
            subject.x[index.to(subject.x.device)], subject.y[index.to(subject.y.device)],
            subject.threat, ids=subject.data.ids[index], options=options,
        )  # fmt: skip
        fooled[index.numpy()] = found.fooled.cpu().numpy()
    return fooled


def _rejection_note(subject: ModelUnderTest) -> str:
    share = float((subject.logits.argmax(1) == subject.data.num_classes).float().mean())
    return f"{share:.1%} of the images are rejected without an attack"
