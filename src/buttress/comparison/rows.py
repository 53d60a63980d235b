"""One row of a comparison: two accuracies, their difference, and whether it is real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.statistics import (
    Interval,
    difference_over_seeds,
    over_seeds_and_images,
    paired_difference,
    resampled_interval,
    smallest_difference,
    wilson,
)

LEVEL = 0.05
Z80 = 0.8416212335729143  # the normal quantile of the power that `smallest` is stated for
Flags = NDArray[np.bool_]  # (models, images)


@dataclass(frozen=True)
class Share:
    """The accuracy of one side; over several seeds the mean of theirs and how far they spread."""

    accuracy: float
    interval: Interval
    sd: float | None = None

    def to_dict(self) -> dict[str, Any]:
        spread = {} if self.sd is None else {"sd": self.sd}
        return {"accuracy": self.accuracy, "interval": self.interval, **spread}


@dataclass(frozen=True)
class Row:
    """One attack, or the worst case."""

    name: str
    a: Share
    b: Share
    difference: float  # accuracy of A minus that of B
    interval: Interval  # 95%
    p: float
    p_holm: float  # corrected for all rows
    smallest: float  # the true difference that is found 80 times in 100
    only_a: int | None = None  # images that A alone gets right; None over several seeds
    only_b: int | None = None
    bootstrap: Interval | None = None  # 95%, from images drawn again; None over several seeds

    @property
    def is_real(self) -> bool:
        """Whether the difference is more than chance explains."""
        return self.p_holm <= LEVEL

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "difference": self.difference,
            "interval": self.interval,
            "bootstrap": self.bootstrap,
            "p": self.p,
            "p_holm": self.p_holm,
            "is_real": self.is_real,
            "smallest": self.smallest,
            "only_a": self.only_a,
            "only_b": self.only_b,
        }


def compare_row(name: str, a: Flags, b: Flags, paired: bool) -> Row:
    """Two models on the same images, or two groups of seeds; not yet corrected for other rows."""
    return _of_two(name, a[0], b[0]) if len(a) == 1 else _of_seeds(name, a, b, paired)


def _of_two(name: str, a: NDArray[np.bool_], b: NDArray[np.bool_]) -> Row:
    found, n = paired_difference(a, b), len(a)
    ours, theirs = (Share(int(f.sum()) / n, wilson(int(f.sum()), n)) for f in (a, b))
    split = found.split
    return Row(
        name=name,
        a=ours,
        b=theirs,
        difference=found.value,
        interval=found.interval,
        p=found.p,
        p_holm=found.p,
        smallest=smallest_difference(n, (split.only_a + split.only_b) / n),
        only_a=split.only_a,
        only_b=split.only_b,
        bootstrap=resampled_interval(split.only_a, split.only_b, n),
    )


def _of_seeds(name: str, a: Flags, b: Flags, paired: bool) -> Row:
    found = difference_over_seeds(a, b, paired=paired)
    spreads = (over_seeds_and_images(flags) for flags in (a, b))
    ours, theirs = (Share(s.mean, s.interval, s.sd) for s in spreads)
    assert found.p is not None
    half = max(found.interval.high - found.mean, found.mean - found.interval.low)
    return Row(
        name=name,
        a=ours,
        b=theirs,
        difference=found.mean,
        interval=found.interval,
        p=found.p,
        p_holm=found.p,
        smallest=min(1.0, half + Z80 * found.error),
    )
