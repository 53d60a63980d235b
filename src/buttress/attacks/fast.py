"""Our own ensemble: what AutoAttack standard leaves, for a small part of its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from buttress.attacks.apgd import APGDT
from buttress.attacks.core import ATTACKS, Attack, Standing, at_least_one
from buttress.attacks.ensemble import Ensemble
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import Problem
from buttress.attacks.square import Square
from buttress.threat import Norm

# Samples with more of their clean margin left than this get no further restarts.
NEAR: dict[Norm, float] = {"Linf": 0.2, "L2": 0.2, "L1": 0.6}
STUCK = 0.98  # steps that leave this much of the margin found no slope: it may be hidden


@ATTACKS.register("fast", tags=("ensemble",))
@dataclass(frozen=True)
class Fast(Ensemble):
    r"""Margins to each other class, most likely first; more for those that are nearly broken.

    1. 20 steps on z_t - z_y for each of the 9 most likely other classes: sign steps (Linf), unit
       steps (L2) or sparse steps (L1) whose length falls as a cosine from 2 eps to 0.
    2. 50 steps for each of 9 classes from new starts, only for samples that kept at most 20% of
       their clean margin. In L1 instead `apgd-t` on the margin to 3 classes with 4 restarts, for
       those that kept at most 60%: its larger balls find more there.
    3. `square` with 1000 queries, only for samples whose gradients are zero or not finite, or moved
       their margin by less than 2%: there the gradient may be hidden.

    The record says how many samples each part was spared. That it leaves no more than `autoattack`
    is measured (see the attacks page), not proven. ``effort`` multiplies the restarts of the second
    part.
    """

    effort: int = 1
    steps: int = 20
    queries: int = 1000

    def __post_init__(self) -> None:
        at_least_one(effort=self.effort, steps=self.steps, queries=self.queries)

    def parts(self, problem: Problem) -> Sequence[Attack]:
        nine = min(9, problem.num_classes - 1)
        again: Attack = _margins(5 * self.steps // 2, nine * self.effort)
        if problem.threat.norm == "L1":
            again = APGDT(steps=5 * self.steps, targets=3, restarts=4 * self.effort, loss="margin")
        return _margins(self.steps, nine), again, Square(queries=self.queries)

    def enlists(self, number: int, standing: Standing) -> Tensor | None:
        left = standing.margin / standing.clean.clamp_max(-1e-12)  # 1: not moved, 0: at the border
        if number == 1:
            return left <= NEAR[standing.norm]
        if number == 2:
            return standing.is_blind | (left >= STUCK)
        return None


def _margins(steps: int, runs: int) -> PGD:
    return PGD(
        steps=steps, rel_step=2.0, restarts=runs, loss="margin", schedule="cosine", target="each"
    )
