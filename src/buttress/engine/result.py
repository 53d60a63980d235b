"""The result of an attack: the best point of each sample, and the passes that it took."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from buttress.attacks.problem import PassCounter


@dataclass(repr=False)
class AttackResult:
    """The result of an attack on a batch."""

    x_adv: Tensor  # (N, C, H, W): the best point, the clean image if none is better
    fooled: Tensor  # (N,) bool: x_adv is misclassified, with EOT in every pass
    margin: Tensor  # (N,) max_{k != y} z_k - z_y at x_adv; +inf if not finite
    counter: PassCounter
    points: Tensor | None = None  # the parameters of x_adv, for parametric threats
    stage_names: tuple[str, ...] = ()  # of an ensemble
    run_margins: Tensor | None = None  # (N, runs) the largest margin of each targeted run

    def __repr__(self) -> str:
        return f"AttackResult({int(self.fooled.sum())} of {len(self.fooled)} images fooled)"

    def replace_rows(self, rows: Tensor, other: AttackResult) -> None:
        """Replaces some rows by those of a second search, and adds its cost."""
        self.x_adv[rows], self.fooled[rows] = other.x_adv, other.fooled
        if self.points is not None and other.points is not None:
            self.points[rows] = other.points
        self.margin[rows] = other.margin
        self._add_cost(rows, other)

    def keep_better(self, rows: Tensor, other: AttackResult) -> None:
        """Replaces rows where another search has better points, and adds its cost.

        A misclassified point is better than any other, else the larger margin counts.
        """
        same_success = other.fooled == self.fooled[rows]
        larger = other.margin > self.margin[rows]
        is_better = larger.where(same_success, other.fooled)
        better_rows = rows[is_better]
        self.x_adv[better_rows] = other.x_adv[is_better]
        if self.points is not None and other.points is not None:
            self.points[better_rows] = other.points[is_better]
        self.fooled[better_rows] = other.fooled[is_better]
        self.margin[better_rows] = other.margin[is_better]
        self._add_cost(rows, other)

    def _add_cost(self, rows: Tensor, other: AttackResult) -> None:
        self.counter.add_rows(rows, other.counter)
        if other.run_margins is not None:
            if self.run_margins is None:
                shape = len(self.margin), other.run_margins.shape[1]
                self.run_margins = other.run_margins.new_full(shape, -torch.inf)
            self.run_margins[rows] = self.run_margins[rows].maximum(other.run_margins)

    def restart_rows(self, rows: Tensor) -> AttackResult:
        """Some rows with a counter at zero: the start of another search."""
        counter = PassCounter.zeros(len(self.fooled[rows]), self.fooled.device)
        points = None if self.points is None else self.points[rows]
        return AttackResult(self.x_adv[rows], self.fooled[rows], self.margin[rows], counter, points)
