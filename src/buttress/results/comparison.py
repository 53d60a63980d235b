"""Paired comparison of two models, or of two groups of training seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import UserError
from buttress.results.comparison_sides import (
    ComparisonSide,
    EvaluatedRun,
    EvaluationSource,
    correct_matrix,
    load_sides,
    select_row_names,
    shared_sample_ids,
)
from buttress.results.core import CLEAN, WORST_CASE, AccuracyEstimate
from buttress.results.display import comparison_html
from buttress.results.run import changed_keys
from buttress.statistics import (
    Interval,
    bootstrap_difference_interval,
    detectable_difference,
    holm,
    paired_difference,
    seed_difference,
    summarize_seeds_and_images,
)

LEVEL = 0.05
Z_POWER_80 = 0.8416212335729143  # normal quantile of 80% power
CorrectMatrix = NDArray[np.bool_]  # (models, images)


@dataclass(frozen=True)
class SideAccuracy:
    """Accuracy of one side; over several seeds their mean and standard deviation."""

    accuracy: float
    interval: Interval
    std: float | None = None

    def to_dict(self) -> dict[str, Any]:
        spread = {} if self.std is None else {"std": self.std}
        return {"accuracy": self.accuracy, "interval": self.interval, **spread}


@dataclass(frozen=True)
class ComparisonRow:
    """The comparison under one attack, or in worst-case robust accuracy."""

    name: str
    a: SideAccuracy
    b: SideAccuracy
    difference: float  # accuracy of A minus that of B
    interval: Interval  # 95%
    p_value: float
    p_value_holm: float  # corrected for all rows
    detectable_difference: float  # the true difference that is detected with 80% power
    only_a: int | None = None  # images that only A classifies correctly; None over several seeds
    only_b: int | None = None
    # 95%, over bootstrap samples; None over several seeds.
    bootstrap_interval: Interval | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the Holm-corrected p-value is at most 0.05."""
        return self.p_value_holm <= LEVEL

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "difference": self.difference,
            "interval": self.interval,
            "bootstrap_interval": self.bootstrap_interval,
            "p_value": self.p_value,
            "p_value_holm": self.p_value_holm,
            "is_significant": self.is_significant,
            "detectable_difference": self.detectable_difference,
            "only_a": self.only_a,
            "only_b": self.only_b,
        }


def _compare_two_models(name: str, a: NDArray[np.bool_], b: NDArray[np.bool_]) -> ComparisonRow:
    difference, n = paired_difference(a, b), len(a)
    estimates = map(AccuracyEstimate.from_scores, (a, b))
    accuracy_a, accuracy_b = (SideAccuracy(e.accuracy, e.interval) for e in estimates)
    counts = difference.counts
    return ComparisonRow(
        name=name,
        a=accuracy_a,
        b=accuracy_b,
        difference=difference.value,
        interval=difference.interval,
        p_value=difference.p_value,
        p_value_holm=difference.p_value,
        detectable_difference=detectable_difference(n, (counts.only_a + counts.only_b) / n),
        only_a=counts.only_a,
        only_b=counts.only_b,
        bootstrap_interval=bootstrap_difference_interval(counts.only_a, counts.only_b, n),
    )


def _compare_seed_groups(
    name: str, a: CorrectMatrix, b: CorrectMatrix, paired: bool
) -> ComparisonRow:
    difference = seed_difference(a, b, paired=paired)
    summaries = (summarize_seeds_and_images(flags) for flags in (a, b))
    accuracy_a, accuracy_b = (SideAccuracy(s.mean, s.interval, s.std) for s in summaries)
    assert difference.p_value is not None
    half = max(
        difference.interval.high - difference.mean, difference.mean - difference.interval.low
    )
    return ComparisonRow(
        name=name,
        a=accuracy_a,
        b=accuracy_b,
        difference=difference.mean,
        interval=difference.interval,
        p_value=difference.p_value,
        p_value_holm=difference.p_value,
        detectable_difference=min(1.0, half + Z_POWER_80 * difference.standard_error),
    )


def comparison_notes(a: ComparisonSide, b: ComparisonSide, shared: int) -> list[str]:
    """Caveats of a comparison: images, weights, seeds, training settings, warnings."""
    members = [*a.members, *b.members]
    sizes = [(m.name, len(m.evaluation)) for m in members]
    notes = []
    if any(size > shared for _, size in sizes):
        sizes_text = ", ".join(f"{name} {size}" for name, size in sizes)
        notes.append(f"only the {shared} images that all were evaluated on count ({sizes_text})")
    weights_a, weights_b = (
        {m.metadata.get("weights_digest") for m in s.members} - {None} for s in (a, b)
    )
    if weights_a & weights_b:
        notes.append("both sides have the same model weights")
    elif len(members) == 2:
        notes.append(
            "one run per side: the result may depend on the training seed; pass several seeds per "
            "side to compare training methods"
        )
    if len({m.metadata.get("seed") for m in members}) > 1:
        notes.append("the attacks used different random seeds")
    if any(m.evaluation.draws > 1 for m in members):
        notes.append("of randomized models, an image counts as correct if every draw is")
    return [*notes, *_training_differences(a.members[0], b.members[0]), *_side_warnings(a, b)]


def _training_differences(a: EvaluatedRun, b: EvaluatedRun) -> list[str]:
    if a.spec_identity is None or b.spec_identity is None:
        return []
    changed = [c for c in changed_keys(a.spec_identity, b.spec_identity) if c != "seed"]
    return [f"the runs differ in {', '.join(changed)}"] if changed else []


def _side_warnings(a: ComparisonSide, b: ComparisonSide) -> list[str]:
    labeled = [
        (warning, letter)
        for letter, side in (("A", a), ("B", b))
        for member in side.members
        for warning in member.evaluation.warnings
    ]
    return [f"{letter}: {warning}" for warning, letter in dict.fromkeys(labeled)]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Whether A and B differ significantly on the images that both were evaluated on."""

    a: ComparisonSide
    b: ComparisonSide
    suite: str
    images: int  # that all were evaluated on
    rows: tuple[ComparisonRow, ...]
    paired_seeds: bool  # seed k of A is compared with seed k of B
    notes: tuple[str, ...] = ()  # caveats

    @property
    def has_seeds(self) -> bool:
        return len(self.a.members) > 1

    @property
    def untrustworthy_sides(self) -> list[str]:
        """The sides whose numbers cannot be trusted."""
        return [name for name, side in (("A", self.a), ("B", self.b)) if not side.is_trustworthy]

    def __repr__(self) -> str:
        sides = f"A={self.a.label!r}, B={self.b.label!r}, {self.images:,} images"
        return f"Comparison({sides}: {summarize_comparison(self)[0]})"

    def _repr_html_(self) -> str:
        return comparison_html(self, [*summarize_comparison(self), *self.notes])

    def row(self, name: str = WORST_CASE) -> ComparisonRow:
        return next(r for r in self.rows if r.name == name)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "suite": self.suite,
            "images": self.images,
            "paired_seeds": self.paired_seeds,
            "rows": {r.name: r.to_dict() for r in self.rows},
            "notes": list(self.notes),
        }


def compare(
    a: EvaluationSource | Sequence[EvaluationSource],
    b: EvaluationSource | Sequence[EvaluationSource],
    *,
    suite: str | None = None,
    attack: str | None = None,
) -> Comparison:
    """Compare two models image by image, or two groups of training seeds.

    Args:
        a: a run, its folder, a folder of records, or an `Evaluation`; a list of them for several
            seeds of one training.
        b: the other side, likewise.
        suite: which evaluation of runs that have several.
        attack: one attack, or ``worst_case``; all of them if not given.

    Only images that all were evaluated on count. Evaluations with different attacks or data
    raise `UserError`.
    """
    sides = load_sides(_as_list(a), _as_list(b), suite)
    members = [m for side in sides for m in side.members]
    sizes = {len(side.members) for side in sides}
    if 1 in sizes and len(sizes) > 1:
        raise UserError(
            f"both sides need several seeds, or one run each, but got "
            f"{len(sides[0].members)} and {len(sides[1].members)}"
        )
    names, shared = select_row_names(members, attack), shared_sample_ids(members)
    seeds_a, seeds_b = (side.seeds for side in sides)
    paired_seeds = sizes != {1} and None not in seeds_a and seeds_a == seeds_b
    rows = []
    for name in names:
        a_correct, b_correct = (correct_matrix(side.members, name, shared) for side in sides)
        if sizes == {1}:
            rows.append(_compare_two_models(name, a_correct[0], b_correct[0]))
        else:
            rows.append(_compare_seed_groups(name, a_correct, b_correct, paired_seeds))
    corrected = holm([r.p_value for r in rows])
    return Comparison(
        *sides,
        suite=str(members[0].metadata.get("suite") or members[0].evaluation.suite),
        images=len(shared),
        rows=tuple(replace(r, p_value_holm=p) for r, p in zip(rows, corrected, strict=True)),
        paired_seeds=paired_seeds,
        notes=tuple(comparison_notes(*sides, len(shared))),
    )


def _as_list(sources: EvaluationSource | Sequence[EvaluationSource]) -> list[EvaluationSource]:
    return list(sources) if isinstance(sources, (list, tuple)) else [sources]  # type: ignore[list-item]


def summarize_comparison(comparison: Comparison) -> list[str]:
    """Sentences on significance and power, for worst-case robust accuracy or the only row."""
    main_row = next((r for r in comparison.rows if r.name == WORST_CASE), comparison.rows[0])
    others = [r for r in comparison.rows if r is not main_row]
    significant = [
        f"{display_name(r)} ({format_points(r.difference)})" for r in others if r.is_significant
    ]
    not_significant = [display_name(r) for r in others if not r.is_significant]
    sentences = [difference_sentence(main_row, comparison.has_seeds)]
    if significant:
        sentences.append(f"Also significant: {', '.join(significant)}.")
    if not_significant:
        sentences.append(f"No significant difference for {', '.join(not_significant)}.")
    sentences.append(power_sentence(main_row, comparison))
    if comparison.untrustworthy_sides:
        sentences.append(
            f"Accuracies of {' and '.join(comparison.untrustworthy_sides)} are not trustworthy; "
            "see the notes."
        )
    return sentences


def difference_sentence(row: ComparisonRow, has_seeds: bool) -> str:
    """State whether the difference of a row is significant."""
    low, high = row.interval
    interval_text = (
        f"95% interval of A - B {100 * low:+.1f} to {format_points(high)}, "
        f"{format_p_value(row.p_value_holm)}"
    )
    names = {WORST_CASE: "in worst-case robust accuracy", CLEAN: "in clean accuracy"}
    condition = names.get(row.name, f"in robust accuracy under {row.name}")
    if not row.is_significant:
        difference = format_points(row.difference)
        return f"No significant difference {condition}: A - B is {difference} ({interval_text})."
    better, worse = ("A", "B") if row.difference > 0 else ("B", "A")
    mean = " on average over seeds" if has_seeds else ""
    size = f"{100 * abs(row.difference):.1f} points"
    finding = f"{better} is {size} above {worse}{mean}"
    return f"Significant difference {condition}: {finding} ({interval_text})."


def power_sentence(row: ComparisonRow, comparison: Comparison) -> str:
    """State the smallest difference that is detected with 80% power."""
    if comparison.has_seeds:
        counts = f"{len(comparison.a.members)} and {len(comparison.b.members)} seeds"
        return f"With {counts} of this spread, {_detectable_text(row)}."
    if row.detectable_difference >= 1:
        return f"{comparison.images} images are too few to detect any difference."
    return f"With {comparison.images} images and this much agreement, {_detectable_text(row)}."


def _detectable_text(row: ComparisonRow) -> str:
    points = f"{100 * row.detectable_difference:.1f} points"
    return f"a true difference of {points} is detected with 80% power"


def display_name(row: ComparisonRow) -> str:
    return row.name.replace("_", " ") if row.name == WORST_CASE else row.name


def format_points(share: float) -> str:
    """``+3.1 points``; zero has no sign."""
    text = f"{100 * share:+.1f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} points"


def format_p_value(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
