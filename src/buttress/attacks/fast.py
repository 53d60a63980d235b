"""Our own ensemble: what AutoAttack standard leaves, for a small part of its passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from buttress.attacks.apgd import APGDT
from buttress.attacks.core import ATTACKS, Attack, Standing, at_least_one
from buttress.attacks.ensemble import Ensemble
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import Problem
from buttress.attacks.square import Square
from buttress.threat import Norm

NEAR, BLIND = 0.2, 0.02  # of those left, usually: near the border; those that look hidden
AIMED = 0.3  # of the classes, usually: those that are worth a run
STUCK = 0.98  # steps that leave this much of the margin found no slope: it may be hidden


@dataclass(frozen=True)
class Stage:
    """An attack, and what it is for: what kept at most this much of the clean margin."""

    attack: Attack
    near: float = math.inf  # samples
    aims: float = math.inf  # classes of such a sample
    is_other: bool = False  # it aims at other classes, and is for samples that nothing moved too


@ATTACKS.register("fast", tags=("ensemble",))
@dataclass(frozen=True)
class Fast(Ensemble):
    r"""Margins to each other class, most likely first; more for those that are nearly broken.

    Linf and L2:

    1. 20 steps on z_t - z_y for each of the 3 most likely other classes: sign steps (Linf) or unit
       steps (L2) whose length falls as a cosine from 2 eps to 0.
    2. The same for 6 more, for samples that kept at most 60% of their clean margin, or all of it.
    3. 50 steps from each of 3 new starts, for samples that kept at most 20%, towards classes whose
       runs left at most 30%.

    L1, where larger balls find more:

    1. 5 sparse steps for each of the 3 most likely other classes.
    2. `apgd-t` on the margin, 25 steps for each of the 3 nearest classes.
    3. 20 steps for each of 6 more, for samples that kept at most 30% of their clean margin, or all
       of it.
    4. 60 steps, for samples that kept at most 15%, towards classes whose runs left at most 25%.
    5. 80 steps from each of 2 starts, for samples that kept at most 5%, towards at most 3 classes
       whose runs left at most 10%.

    In 2 to 5 a run ends early that fooled the model nowhere in the ball of 2 eps.

    Each part takes the classes first that the parts before it came nearest to.

    Last in every norm: `square` with 1000 queries, only for samples whose gradients are zero or not
    finite, or moved their margin by less than 2%: there the gradient may be hidden.

    The record says how many samples each part was spared. That it leaves no more than `autoattack`
    is measured (see the pages on attacks and performance), not proven. ``effort`` multiplies the
    restarts of the part before the last; ``steps`` scales all steps.
    """

    reorders: ClassVar[bool] = True
    effort: int = 1
    steps: int = 20
    queries: int = 1000

    def __post_init__(self) -> None:
        at_least_one(effort=self.effort, steps=self.steps, queries=self.queries)

    def parts(self, problem: Problem) -> Sequence[Attack]:
        others = problem.num_classes - 1
        return [stage.attack for stage in self.stages(problem.threat.norm, others)]

    def stages(self, norm: Norm, others: int) -> list[Stage]:
        """The parts in a norm, for so many classes beside the right one."""
        square = Stage(Square(queries=self.queries))
        if norm != "L1":
            return [
                Stage(_margins(self.steps, min(3, others))),
                Stage(_margins(self.steps, max(1, min(6, others - 3)), skip=3), 0.6, is_other=True),
                Stage(_margins(5 * self.steps // 2, min(9, others), 3 * self.effort), 0.2, 0.3),
                square,
            ]

        def wide(steps: int, targets: int, restarts: int = 1, skip: int = 0) -> Attack:
            steps = max(1, steps * self.steps // 20)
            return APGDT(
                steps=steps, targets=targets, restarts=restarts, loss="margin", skip=skip,
                give_up=True,
            )  # fmt: skip

        return [
            Stage(_margins(max(1, self.steps // 4), min(3, others))),
            Stage(wide(25, 3)),
            Stage(wide(20, 6, skip=3), 0.3, is_other=True),
            Stage(wide(60, 9), 0.15, 0.25),
            Stage(wide(80, 3, 2 * self.effort), 0.05, 0.1),
            square,
        ]

    def enlists(self, number: int, standing: Standing) -> Tensor | None:
        left = standing.margin / standing.clean.clamp_max(-1e-12)  # 1: not moved, 0: at the border
        stages = self.stages(standing.norm, 1)
        is_stuck, near = standing.is_blind | (left >= STUCK), stages[number].near
        if number == len(stages) - 1:
            return is_stuck
        if stages[number].is_other:
            return is_stuck | (left <= near)
        return None if math.isinf(near) else left <= near

    def aims(self, number: int, norm: Norm) -> float:
        return self.stages(norm, 1)[number].aims

    def usual_share(self, number: int, norm: Norm) -> float:
        stages = self.stages(norm, 1)
        if number == len(stages) - 1:
            return BLIND
        stage = stages[number]
        samples = 1.0 if math.isinf(stage.near) else NEAR
        return samples if math.isinf(stage.aims) else samples * AIMED


def _margins(steps: int, targets: int, restarts: int = 1, skip: int = 0) -> PGD:
    return PGD(
        steps=steps, rel_step=2.0, restarts=targets * restarts, loss="margin", schedule="cosine",
        target="each", targets=targets, skip=skip,
    )  # fmt: skip
