"""Every predicate on planted true, false, tied, floored, failed, missing and noisy tables."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from buttress.analysis.uncertainty import FigureSamples
from buttress.studies.claims import CLAIMS, ClaimAssessment, assess_claim
from buttress.studies.claims.conditions import AtLeast, Negation, ValueComparison, all_of, any_of
from buttress.studies.table import CellKey, MeasuredValue, StudyTable, ValueTable


def load_simulation() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "claim_outcomes.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


SIMULATION = load_simulation()
CLAIM_CASES = {**SIMULATION.FIXED, **SIMULATION.SAMPLED}
CORRELATION = "correlation, above"


def planted(effect: float, *, base: float = 0.4, images: int = 4000, seed: int = 0) -> StudyTable:
    accuracies = {
        name: np.clip(base + effect * pattern, 0, 0.98)
        for name, pattern in SIMULATION.PATTERNS.items()
    }
    generator = np.random.default_rng(seed)
    table: StudyTable = SIMULATION.draw_table(accuracies, images, 3, generator)
    return table


def assess(table: ValueTable, title: str) -> ClaimAssessment:
    name, args = CLAIM_CASES[title]
    return assess_claim(CLAIMS.create(name, args), table)


TRUE = planted(0.05)
TRUE_VALUES, FALSE_VALUES = TRUE.as_values(500), planted(-0.05).as_values(500)
ENDS = (TRUE.rows[0], TRUE.rows[-1])  # every claim needs one of these rows
NARROW = ("monotone, diminishing",)  # steps of steps: 4,000 images show them only when it is false
# With a negative effect too; tested below.
ALSO_TRUE = ("correlation, above", "correlation, below", "value_range, above", "value_range, below")


def test_every_predicate_is_tested() -> None:
    assert {name for name, _ in CLAIM_CASES.values()} == set(CLAIMS.names())


@pytest.mark.parametrize("title", [t for t in CLAIM_CASES if t not in (*NARROW, *ALSO_TRUE)])
def test_what_is_true_holds(title: str) -> None:
    assert assess(TRUE_VALUES, title).outcome == "holds"


@pytest.mark.parametrize(
    "title", [t for t in CLAIM_CASES if t not in (*ALSO_TRUE, "different_best_rows", "peak")]
)
def test_what_is_false_does_not_hold(title: str) -> None:
    assert assess(FALSE_VALUES, title).outcome == "does not hold"


def test_ranges_and_correlations() -> None:
    assert assess(TRUE_VALUES, "value_range, above").outcome == "holds"
    assert assess(TRUE_VALUES, "value_range, below").outcome == "does not hold"
    flat = planted(0.0).as_values(500)
    assert assess(flat, "value_range, above").outcome in ("undecided", "does not hold")
    assert assess(flat, "value_range, below").outcome in ("undecided", "holds")
    perfect = assess(TRUE_VALUES, CORRELATION)  # of eight rows
    assert perfect.outcome == "holds"
    assert assess(TRUE_VALUES, "correlation, below").outcome == "does not hold"


@cache
def changed(change: str) -> ValueTable:
    """A planted table with one thing wrong."""
    values = dict(TRUE.values)
    missing: dict[CellKey, str] = {}
    for key, value in TRUE.values.items():
        if change in ("floor", "ceiling"):
            scores = tuple(np.full(100, float(change == "ceiling")) for _ in range(3))
            values[key] = replace(value, scores=scores)
        elif change == "tied":  # all rows fail on the same images
            values[key] = replace(TRUE.values[ENDS[0], "a"])
        elif change in ("bare", "exact"):
            values[key] = MeasuredValue(
                (0,), values_per_seed=(value.value,), is_exact=change == "exact"
            )
        elif change == "failed" and key[0] in ENDS:
            values[key] = replace(value, problem="training failed")
        elif change == "missing" and key[0] in ENDS:
            missing[key] = "the run failed"
            del values[key]
    return replace(TRUE, values=values, missing=missing).as_values(500)


# Ties within a margin are what these claim.
WITHIN = ("value_range, above", "value_range, below", "best_within_margin")


@pytest.mark.parametrize("title", [t for t in CLAIM_CASES if t not in WITHIN])
def test_rows_that_tie_are_undecided_and_said_to_tie(title: str) -> None:
    result = assess(changed("tied"), title)
    assert result.outcome == "undecided"
    assert "tied within their uncertainty" in result.reason or "constant" in result.reason


@pytest.mark.parametrize("title", CLAIM_CASES)
@pytest.mark.parametrize("place", ["floor", "ceiling"])
def test_the_floor_and_the_ceiling_decide_nothing(title: str, place: str) -> None:
    result = assess(changed(place), title)
    assert result.outcome == "undecided"
    assert f"at the {place} in all" in result.reason or "constant" in result.reason


@pytest.mark.parametrize("title", CLAIM_CASES)
def test_a_failed_training_decides_nothing(title: str) -> None:
    result = assess(changed("failed"), title)
    assert result.outcome == "undecided"
    assert "training failed" in result.reason
    assert result.evidence


@pytest.mark.parametrize("title", CLAIM_CASES)
def test_a_missing_value_is_named_with_its_reason(title: str) -> None:
    result = assess(changed("missing"), title)
    assert result.outcome == "undecided"
    assert "is missing for r" in result.reason
    assert result.reason.endswith(": the run failed")


@pytest.mark.parametrize("title", CLAIM_CASES)
def test_numbers_without_uncertainty_decide_nothing(title: str) -> None:
    result = assess(changed("bare"), title)
    assert result.outcome == "undecided"
    assert "has no uncertainty with one seed" in result.reason
    assert assess(changed("exact"), title).outcome != "undecided"


@pytest.mark.parametrize("title", CLAIM_CASES)
def test_twenty_images_with_a_small_effect_are_mostly_open(title: str) -> None:
    outcomes = [assess(table, title).outcome for table in noisy_tables()]
    assert outcomes.count("undecided") >= 4


@cache
def noisy_tables() -> list[ValueTable]:
    return [planted(0.002, images=20, seed=seed).as_values(500) for seed in range(6)]


def test_figures_of_analyses_are_redrawn_over_their_images() -> None:
    def table(noise: float) -> StudyTable:
        generator = np.random.default_rng(0)
        cells: dict[CellKey, MeasuredValue] = {}
        for name, value in (("a", 1.0), ("b", 2.0)):
            samples = value + noise * generator.standard_normal((1, 50))
            figure = FigureSamples("image", samples, unit_set="same")
            cells[(name,), "sharpness"] = MeasuredValue(
                (0,), values_per_seed=(figure.value,), figures=(figure,)
            )
        return StudyTable(("net",), (("a",), ("b",)), cells, ("sharpness",),
                          units={"sharpness": "number"})  # fmt: skip

    args = {"column": "sharpness", "rows": [{"net": "b"}, {"net": "a"}]}
    predicate = CLAIMS.create("row_order", args)
    assert assess_claim(predicate, table(0.5).as_values()).outcome == "holds"
    noisy = assess_claim(predicate, table(10.0).as_values())
    assert noisy.outcome == "undecided"
    assert "points" not in noisy.evidence + noisy.reason


@pytest.mark.parametrize(
    ("images", "more", "outcome"),
    [
        (20, 4, "undecided"),  # one-sided exact p-value 0.0625
        (20, 9, "holds"),
        (10_000, 40, "undecided"),  # 0.4 points: clear on these images, not for another seed
        (10_000, 200, "holds"),
    ],
)
def test_one_seed_and_nested_images(images: int, more: int, outcome: str) -> None:
    """The better row is right on all images of the other and on ``more``."""
    cells: dict[CellKey, MeasuredValue] = {}
    for name, count in (("better", images // 4 + more), ("worse", images // 4)):
        scores = (np.arange(images) < count).astype(float)
        cells[(name,), "a"] = MeasuredValue((0,), (scores,), image_set="same")
    table = StudyTable(("row",), (("better",), ("worse",)), cells, ("a",))
    args = {"column": "a", "rows": [{"row": "better"}, {"row": "worse"}]}
    assert assess_claim(CLAIMS.create("row_order", args), table.as_values()).outcome == outcome


def test_samples_of_rows_vary_independently_between_groups() -> None:
    """The standard deviation of a difference of means is that of both, not of their common part."""
    rows = tuple((name,) for name in "abcdefgh")
    values = np.array([0.3, 0.4, 0.5, 0.6, 0.3, 0.4, 0.5, 0.6])
    table = ValueTable(("row",), rows, {"a": values}, SIMULATION.ATTRIBUTES,
                       redraws={"a": np.repeat(values[:, None], 4000, axis=1)})  # fmt: skip
    args = {"column": "a", "where": {"kind": "y"}, "baseline": {"kind": "x"}, "redraw_rows": True}
    (comparison,) = CLAIMS.create("higher", args).condition(table).parts
    low, high = np.quantile(comparison.difference[1:], (0.025, 0.975))
    error = np.sqrt(2) * values[:4].std(ddof=1) / 2  # of the difference of two means of four rows
    assert 2.5 * error < (high - low) / 2 < 3.8 * error  # t with three degrees of freedom each


def test_evidence_is_in_the_units_of_the_column() -> None:
    table = replace(TRUE_VALUES, units={"a": "number"})
    assert assess(table, "row_order").evidence.startswith("a: 0.7")
    assert "points" in assess(TRUE_VALUES, "gain").evidence
    assert assess(TRUE_VALUES, "row_order").evidence.startswith("a: 7")


def comparison(p_value: float, is_true: bool = True) -> ValueComparison:
    """One whose redraws contradict it this often."""
    draws = np.ones(2000)
    draws[: round(2000 * p_value)] = -1
    return ValueComparison(np.append(1.0, draws) * (1 if is_true else -1), 0.0)


def test_levels_of_conditions() -> None:
    """All are true at the level of one; one of many needs a level divided by their number."""
    sure, likely = comparison(0.005), comparison(0.02)
    assert all_of([likely, likely, likely]).is_firm(True)
    assert any_of([likely, comparison(0.5)]).is_firm(True) is False
    assert any_of([sure, comparison(0.5)]).is_firm(True)
    assert all_of([comparison(0.02, is_true=False), comparison(0.5)]).is_firm(False) is False
    assert all_of([comparison(0.005, is_true=False), comparison(0.5)]).is_firm(False)
    assert AtLeast(2, [likely, likely, comparison(0.5)]).is_firm(True) is False
    assert AtLeast(2, [sure, sure, comparison(0.5)]).is_firm(True)
    assert Negation(all_of([comparison(0.005, is_true=False)])).is_firm(True)
    assert not comparison(0.05).is_firm(True)


def test_levels_beyond_the_redraws_are_extrapolated() -> None:
    draws = np.append(3.5, 3.5 + np.random.default_rng(0).standard_normal(2000))
    assert ValueComparison(draws, 0.0).is_firm(True, 0.003)
    assert not ValueComparison(draws, 0.0).is_firm(True, 0.00001)
    assert ValueComparison(np.ones(2001), 0.0).is_firm(True, 1e-9)


def test_wrong_firm_verdicts_of_a_small_simulation() -> None:
    """Of 24 claims on 12 tables at the edge of truth."""
    wrong = count = 0
    for situation in ("barely true", "tied", "barely false"):
        tallies = SIMULATION.simulate_fixed_rows(situation, 100, 1, 4)
        wrong += sum(tally.wrong for tally in tallies.values())
        count += sum(tally.count for tally in tallies.values())
    assert wrong <= 0.05 * count
