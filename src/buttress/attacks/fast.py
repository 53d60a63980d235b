"""The ensemble `fast`: robust accuracy as under AutoAttack, for a fraction of its passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from buttress.attacks.apgd import APGDT
from buttress.attacks.core import ATTACKS, Attack, EnsembleAttack, EnsembleState, check_positive
from buttress.attacks.pgd import PGD
from buttress.attacks.square.attack import Square
from buttress.threats.core import Space, Threat

EXPECTED_NEAR = 0.2  # expected fraction of samples near the decision boundary
EXPECTED_MASKED = 0.02  # expected fraction of samples whose gradient may be masked
EXPECTED_TARGETS = 0.3  # expected fraction of classes that are targeted
PROBE_FRACTION = 0.05  # of the queries: those that every sample not fooled yet gets
MASKED_RATIO = 0.98  # of the clean margin kept after gradient steps: the gradient may be masked


@dataclass(frozen=True)
class FastStage:
    """An attack, and the fraction of the clean margin that its samples kept at most."""

    attack: Attack
    max_sample_ratio: float = math.inf  # samples
    max_target_ratio: float = math.inf  # classes of such a sample
    has_new_targets: bool = False  # it also attacks samples whose margin did not move


@ATTACKS.register("fast", tags=("ensemble",))
@dataclass(frozen=True)
class FastEnsemble(EnsembleAttack):
    r"""Targeted margins, most likely classes first; more runs for samples that are nearly fooled.

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

    Each stage targets the classes first that the stages before it came nearest to.

    Last in every norm, two stages that do not trust the gradient: `square` with 50 queries for
    every sample not fooled yet, then with 1000 for those whose gradient may be masked: it is zero
    or not finite, it moved the margin by less than 2%, or the 50 queries found a larger margin than
    all gradient steps.

    The record says how many samples each stage skipped. That robust accuracy is no higher than
    under `autoattack` is measured (see the pages on attacks and performance), not proven.
    ``effort`` multiplies the restarts of the last gradient stage; ``steps`` scales all steps.
    """

    reorders_targets: ClassVar[bool] = True
    # Records without the queries for every sample are not reused.
    record_identity: ClassVar[Mapping[str, str]] = {"gradient_free_queries": "all samples"}
    effort: int = 1
    steps: int = 20
    queries: int = 1000

    def __post_init__(self) -> None:
        check_positive(effort=self.effort, steps=self.steps, queries=self.queries)

    def stages(self, threat: Threat, num_classes: int) -> Sequence[Attack]:
        return [stage.attack for stage in self.stage_table(threat.space, num_classes - 1)]

    def stage_table(self, space: Space, num_others: int) -> list[FastStage]:
        """The stages in a space, for so many classes beside the label."""
        probe = FastStage(Square(queries=max(1, round(PROBE_FRACTION * self.queries))))
        square = FastStage(Square(queries=self.queries))
        if space != "L1":
            return [
                FastStage(_margin_pgd(self.steps, min(3, num_others))),
                FastStage(
                    _margin_pgd(self.steps, max(1, min(6, num_others - 3)), skip_targets=3),
                    0.6,
                    has_new_targets=True,
                ),
                FastStage(
                    _margin_pgd(5 * self.steps // 2, min(9, num_others), 3 * self.effort), 0.2, 0.3
                ),
                probe,
                square,
            ]

        def margin_apgd(steps: int, targets: int, restarts: int = 1, skip: int = 0) -> Attack:
            return APGDT(
                steps=max(1, steps * self.steps // 20), targets=targets, restarts=restarts,
                loss="margin", skip_targets=skip, early_stop=True,
            )  # fmt: skip

        return [
            FastStage(_margin_pgd(max(1, self.steps // 4), min(3, num_others))),
            FastStage(margin_apgd(25, 3)),
            FastStage(margin_apgd(20, 6, skip=3), 0.3, has_new_targets=True),
            FastStage(margin_apgd(60, 9), 0.15, 0.25),
            FastStage(margin_apgd(80, 3, 2 * self.effort), 0.05, 0.1),
            probe,
            square,
        ]

    def select_samples(self, stage: int, state: EnsembleState) -> Tensor | None:
        # 1: not moved, 0: at the decision boundary
        margin_ratio = state.best_margin / state.clean_margin.clamp_max(-1e-12)
        stages = self.stage_table(state.space, 1)
        max_ratio = stages[stage].max_sample_ratio
        may_be_masked = state.has_unusable_gradient | (margin_ratio >= MASKED_RATIO)
        if stage == len(stages) - 1:
            return may_be_masked | state.is_improved
        if stages[stage].has_new_targets:
            return may_be_masked | (margin_ratio <= max_ratio)
        return None if math.isinf(max_ratio) else margin_ratio <= max_ratio

    def target_threshold(self, stage: int, space: Space) -> float:
        return self.stage_table(space, 1)[stage].max_target_ratio

    def expected_fraction(self, stage: int, space: Space) -> float:
        stages = self.stage_table(space, 1)
        if stage == len(stages) - 1:
            return EXPECTED_MASKED
        row = stages[stage]
        fraction = 1.0 if math.isinf(row.max_sample_ratio) else EXPECTED_NEAR
        return fraction if math.isinf(row.max_target_ratio) else fraction * EXPECTED_TARGETS


def _margin_pgd(steps: int, targets: int, restarts: int = 1, skip_targets: int = 0) -> PGD:
    return PGD(
        steps=steps, rel_step=2.0, restarts=targets * restarts, loss="margin", schedule="cosine",
        target="each", targets=targets, skip_targets=skip_targets,
    )  # fmt: skip
