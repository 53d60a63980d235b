"""Inner maximization of adversarial training: the attack on a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.core import Attack
from buttress.attacks.pgd import PGD, StartRule
from buttress.attacks.problem import Problem
from buttress.engine.last_iterate import HoldRule, last_iterate
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode
from buttress.threats.core import Threat
from buttress.training.objectives.core import (
    AdversarialBatch,
    LossOutput,
    Objective,
    TrainingBatch,
    adversarial_images,
    cross_entropy,
)

MIN_IMAGES_PER_THREAD = 16  # images that are worth a thread


def run_inner_attack(
    model: nn.Module,
    batch: TrainingBatch,
    attack: Attack,
    *,
    threat: Threat | None = None,
    freeze_samples: HoldRule = None,
) -> Tensor:
    """Run an attack on the frozen model in evaluation mode; return its last iterate.

    The attack updates no BatchNorm statistics and leaves no gradients. It uses the
    inference-optimized model of the batch, if there is one. ``threat`` replaces that of the batch;
    ``freeze_samples`` is called at each step and may stop samples. Returns ``x`` if eps is zero.
    One pass more than the attack's steps gives the clean logits, if the attack needs them.
    """
    threat, batch = threat or batch.threat, batch.with_attack_labels()
    assert threat is not None
    if threat.is_trivial:
        return batch.x
    with eval_mode(model):
        attack_model = model if batch.attack_model is None else batch.attack_model
        with torch.no_grad():
            clean_logits = attack_model(batch.x) if needs_clean_logits(attack) else None
        problem = Problem.pose(attack_model, batch.x, batch.y, threat, batch.streams, clean_logits)
        if freeze_samples is not None or batch.x.device.type != "cpu":
            return last_iterate(attack, problem, freeze_samples)
        return _run_in_threads(attack, problem)


def needs_clean_logits(attack: Attack) -> bool:
    """Whether an attack compares with the clean prediction or chooses a target from it."""
    return getattr(attack, "loss", "") == "kl" or getattr(attack, "target", "none") != "none"


def _run_in_threads(attack: Attack, problem: Problem) -> Tensor:
    """Attack a part of the batch in each thread, faster than intra-op threads."""
    num_threads = min(torch.get_num_threads(), len(problem.x) // MIN_IMAGES_PER_THREAD)
    if num_threads <= 1:
        return last_iterate(attack, problem)
    parts = [problem.select(rows) for rows in problem.row_numbers().tensor_split(num_threads)]
    return torch.cat(list(_thread_pool(num_threads).map(partial(last_iterate, attack), parts)))


@lru_cache(maxsize=1)
def _thread_pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attack", initializer=partial(torch.set_num_threads, 1))


@dataclass(frozen=True)
class AdversarialObjective(Objective):
    """Base class of objectives on PGD adversarial images; the default loss is cross-entropy."""

    needs_threat = True
    steps: int = 10
    rel_step: float = 0.25
    start: StartRule = "random"
    noise: float = 1e-3  # of a Gaussian start

    def __post_init__(self) -> None:
        PGD(steps=self.steps, rel_step=self.rel_step, start=self.start, noise=self.noise)

    @property
    def attack_passes(self) -> PassCount:
        return PassCount(self.steps, self.steps)

    def create_attack(self, batch: TrainingBatch, **attack_args: Any) -> PGD:
        """Create the attack; its steps scale with eps during warm-up or stay fixed."""
        rel_step = self.rel_step * batch.step_scale
        return PGD(
            steps=self.steps, rel_step=rel_step, start=self.start, noise=self.noise, **attack_args
        )

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        return AdversarialBatch(run_inner_attack(model, batch, self.create_attack(batch)))

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        """Cross-entropy on the adversarial images, or on several versions of the batch."""
        logits = model(adversarial_images(adversarial))
        return LossOutput(cross_entropy(logits, batch), logits.detach()[: len(batch.y)])

    def with_stronger_attack(self) -> AdversarialObjective:
        """Return the objective with twice as many steps of half the length."""
        return replace(self, steps=2 * self.steps, rel_step=max(self.rel_step / 2, 0.25))
