"""Adversarial Rademacher complexity of linear classes against dimension, by weight norm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult, Count
from buttress.analysis.figures import Figure
from buttress.analysis.methods.rademacher_complexity import (
    dual_exponent,
    lemma_limits,
    rademacher_complexity,
)
from buttress.analysis.uncertainty import FORMULA, SampleUnits, StoredSamples, UncertaintyNote
from buttress.config import Spec
from buttress.errors import UserError
from buttress.system.progress import Progress
from buttress.system.rng import make_generator

PointDistribution = Literal["padded", "pixels"]
NORMS = {"1": 1.0, "2": 2.0, "inf": math.inf}


class ComplexityRow(Spec):
    """The complexities of one class in one dimension."""

    dimension: int
    natural: float
    natural_error: float  # standard error of the mean over draws
    adversarial: float
    adversarial_error: float
    lower: float  # what the lemma allows
    upper: float
    dimension_term: float  # its part with the dimension


class LinearClass(Spec):
    """Linear classifiers with a bound on one norm of the weights, in growing dimension.

    A slope is that of the logarithm against the logarithm of the dimension, over all dimensions.
    """

    p: str
    rows: tuple[ComplexityRow, ...]
    natural_slope: float
    adversarial_slope: float
    # Of the adversarial complexity, between the two largest dimensions.
    largest_dimensions_slope: float
    dimension_term_slope: float


class RademacherResult(AnalysisResult):
    """Natural and adversarial Rademacher complexity of linear classes."""

    eps: float
    radius: float
    count: int  # points
    draws: int
    points: PointDistribution
    classes: tuple[LinearClass, ...]

    @staticmethod
    def plot(results: Mapping[str, RademacherResult], figure: Figure) -> None:
        """One panel per norm: both complexities, and the band that the lemma allows."""
        names = [c.p for c in next(iter(results.values())).classes]
        axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for number, (label, result) in enumerate(results.items()):
            prefix = f"{label}: " if label else ""
            for axis, linear_class in zip(axes, result.classes, strict=True):
                rows, kinds = linear_class.rows, ("adversarial", "natural")
                x = [r.dimension for r in rows]
                for kind, style in zip(kinds, ("o-", "--"), strict=True):
                    slope = _format_signed(getattr(linear_class, f"{kind}_slope"))
                    values = [getattr(r, kind) for r in rows]
                    name = f"{prefix}{kind}, slope {slope}"
                    axis.plot(x, values, style, color=f"C{number}", label=name)
                band = [r.lower for r in rows], [r.upper for r in rows]
                axis.fill_between(
                    x, *band, alpha=0.15, color=f"C{number}", label="allowed by the lemma"
                )
        for axis, name in zip(axes, names, strict=True):
            axis.set(xscale="log", yscale="log", xlabel="dimension", title=f"p = {name}")
            axis.legend(fontsize="x-small")
        axes[0].set(ylabel="Rademacher complexity")

    def summary(self) -> str:
        """Summarize the slopes."""
        parts = [f"{_format_signed(c.adversarial_slope)} for p = {c.p}" for c in self.classes]
        without = [f"{_format_signed(c.natural_slope)}" for c in self.classes]
        first, last = (self.classes[0].rows[i].dimension for i in (0, -1))
        return (
            f"From dimension {first:,} to {last:,} the logarithm of the adversarial complexity "
            f"(eps {self.eps:g}) grows with the slope {', '.join(parts)}; without an adversary "
            f"{', '.join(without)}. {_limits_sentence(self)}"
        )


def _format_signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # the sum turns -0.0 into 0.0


def _limits_sentence(result: RademacherResult) -> str:
    rows = [r for c in result.classes for r in c.rows]
    num_within = sum(r.lower <= r.adversarial <= r.upper for r in rows)
    return f"{num_within} of {len(rows)} values lie within the limits of the lemma."


DIMENSION_TERM = FORMULA.model_copy(update={"pattern": "*dimension_term*"})
STANDARD_ERROR = UncertaintyNote(
    pattern="*", varies_by="none", reason="its standard error over draws is beside it"
)


def rademacher_cost(*, dimensions: Sequence[int], count: int, draws: int, **_: Any) -> str:
    """The sums of points under random signs, with and without an adversary."""
    each = 2 * len(NORMS) * draws * count
    total = each * sum(int(d) for d in dimensions)
    return f"{total:.2g} multiply-adds for {len(dimensions)} dimensions and {len(NORMS)} norms"


@ANALYSES.register(
    "rademacher",
    paper="arXiv:1810.11914",
    tags=("bound", "theory"),
    cost=rademacher_cost,
    subject="none",
    example_args={"dimensions": (4, 8), "draws": 20},
    uncertainty=(DIMENSION_TERM, STANDARD_ERROR),
)
def rademacher(
    progress: Progress,
    *,
    dimensions: Sequence[int] = (16, 64, 256, 1024, 4096, 16384),
    eps: Annotated[float, Ge(0)] = 0.1,
    count: Count = 100,
    draws: Annotated[int, Ge(2)] = 400,
    points: PointDistribution = "padded",
    seed: int = 0,
) -> RademacherResult:
    """Complexity of linear classifiers with small l1, l2 or Linf weights, as dimension grows.

    ``points="padded"`` takes the points of the smallest dimension, of length one in the norm dual
    to that of the weights, and adds coordinates that are zero: they change nothing without an
    adversary, so all growth is the adversary's. ``points="pixels"`` draws every coordinate from
    [-1, 1], as in images of more and more pixels; there the natural complexity grows too.
    """
    dimensions = _check_dimensions(dimensions)
    task = progress.add_task("rademacher", len(NORMS) * len(dimensions))
    signs = random_signs(draws, count, seed)
    classes: list[LinearClass] = []
    samples: dict[str, StoredSamples] = {}
    for name, p in NORMS.items():
        rows, draws_by_row = [], []
        for width in dimensions:
            if points == "padded":
                x = pad_points(random_points(count, dimensions[0], seed), width, dual_exponent(p))
            else:
                x = random_points(count, width, seed)
            row, per_draw = _complexity_row(p, x, signs, eps)
            rows.append(row)
            draws_by_row.append(per_draw)
            task.advance(1, note=f"p = {name}, dimension {width}")
        samples |= _slope_samples(f"classes[{len(classes)}]", dimensions, draws_by_row)
        classes.append(_linear_class(name, rows))
    task.close()
    return RademacherResult(
        eps=eps,
        radius=1.0,
        count=count,
        draws=draws,
        points=points,
        classes=tuple(classes),
        samples=samples,
    )


def _slope_samples(
    path: str, dimensions: Sequence[int], draws: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, StoredSamples]:
    """The complexities of each draw of signs, from which slopes can be drawn again."""
    units = SampleUnits(range(len(draws[0][0])), "draw")
    natural, adversarial = zip(*draws, strict=True)
    slopes = {
        "natural_slope": (natural, dimensions),
        "adversarial_slope": (adversarial, dimensions),
        "largest_dimensions_slope": (adversarial[-2:], dimensions[-2:]),
    }
    return {
        f"{path}.{name}": units.store(*terms, statistic="log_log_slope", grid=grid)
        for name, (terms, grid) in slopes.items()
    }


def _check_dimensions(dimensions: Sequence[int]) -> tuple[int, ...]:
    unique_dimensions = tuple(sorted({int(d) for d in dimensions}))
    if len(unique_dimensions) < 2 or unique_dimensions[0] < 1:
        raise UserError(
            f"`dimensions` must be at least two positive integers, but got {dimensions!r}"
        )
    return unique_dimensions


def _complexity_row(
    p: float, x: Tensor, signs: Tensor, eps: float
) -> tuple[ComplexityRow, tuple[Tensor, Tensor]]:
    """The complexities in one dimension; beside them those of each draw, natural first."""
    count, width = x.shape
    natural = rademacher_complexity(x, signs, eps=0.0, radius=1.0, p=p)
    attacked = rademacher_complexity(x, signs, eps=eps, radius=1.0, p=p)
    allowed = lemma_limits(natural.mean, count=count, width=width, eps=eps, radius=1.0, p=p)
    row = ComplexityRow(
        dimension=width,
        natural=natural.mean,
        natural_error=natural.error,
        adversarial=attacked.mean,
        adversarial_error=attacked.error,
        lower=allowed.lower,
        upper=allowed.upper,
        dimension_term=allowed.dimension_term,
    )
    return row, (natural.per_draw, attacked.per_draw)


def random_points(count: int, width: int, seed: int) -> Tensor:
    """(count, width) points with coordinates in [-1, 1]; labels are part of them."""
    rng = make_generator("rademacher points", seed, width)
    return 2 * torch.rand(count, width, generator=rng, dtype=torch.float64) - 1


def pad_points(points: Tensor, width: int, q: float) -> Tensor:
    """Points of length one in the norm of q, with zeros up to a larger dimension."""
    points = points / torch.linalg.vector_norm(points, ord=q, dim=1, keepdim=True)
    return torch.nn.functional.pad(points, (0, width - points.shape[1]))


def random_signs(draws: int, count: int, seed: int) -> Tensor:
    rng = make_generator("rademacher signs", seed)
    return 2.0 * torch.randint(0, 2, (draws, count), generator=rng).double() - 1.0


def _linear_class(name: str, rows: list[ComplexityRow]) -> LinearClass:
    dimensions = [r.dimension for r in rows]
    attacked = [r.adversarial for r in rows]
    return LinearClass(
        p=name,
        rows=tuple(rows),
        natural_slope=log_log_slope(dimensions, [r.natural for r in rows]),
        adversarial_slope=log_log_slope(dimensions, attacked),
        largest_dimensions_slope=log_log_slope(dimensions[-2:], attacked[-2:]),
        dimension_term_slope=log_log_slope(dimensions, [r.dimension_term for r in rows]),
    )


def log_log_slope(x_values: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope in logarithms; zero where a value is zero and has no logarithm."""
    if min(values) <= 0:
        return 0.0
    x = torch.tensor(x_values, dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())
