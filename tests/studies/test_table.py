"""Claims on planted data: true, false and undecidable ones get the right word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from buttress.studies.answer import rank_agreement
from buttress.studies.claims import CLAIMS, assess_claim, needed_data
from buttress.studies.table import MeasuredValue, StudyTable, ValueTable

N = 2000


def flags(share: float, n: int = N, offset: int = 0) -> np.ndarray:
    """Exactly ``share`` of n images right, spread over them."""
    right = np.zeros(n)
    right[: round(share * n)] = 1
    return np.random.default_rng(offset).permutation(right)


def planted(
    shares: dict[str, float], *, n: int = N, attributes: dict[str, dict[str, Any]] | None = None
) -> StudyTable:
    """One column ``robust``, one row per name, independent images."""
    rows = tuple((name,) for name in shares)
    cells: dict[tuple[tuple[str, ...], str], MeasuredValue] = {
        ((name,), "robust"): MeasuredValue((0,), scores=(flags(share, n, i),), image_set="same")
        for i, (name, share) in enumerate(shares.items())
    }
    known = tuple((attributes or {}).get(name, {}) for name in shares)
    return StudyTable(("net",), rows, cells, ("robust",), known)


def word(table: StudyTable, name: str, **args: Any) -> str:
    predicate = CLAIMS.create(name, args)
    return assess_claim(predicate, table.as_values(400)).outcome


KINDS = {"a": {"kind": "x"}, "b": {"kind": "x"}, "c": {"kind": "y"}, "d": {"kind": "y"}}
DEPTHS = {"a": {"depth": 1}, "b": {"depth": 2}, "c": {"depth": 3}, "d": {"depth": 4}}
UP = {"a": 0.2, "b": 0.3, "c": 0.4, "d": 0.5}
DOWN = {"a": 0.5, "b": 0.4, "c": 0.3, "d": 0.2}
FLAT = {"a": 0.301, "b": 0.3, "c": 0.3005, "d": 0.3}

CASES: list[tuple[str, dict[str, Any], dict[str, dict[str, Any]]]] = [
    ("top", {"column": "robust", "where": {"net": ["c", "d"]}, "count": 2, "all_rows": True}, {}),
    ("top", {"column": "robust", "where": {"kind": "y"}, "count": 2}, KINDS),
    ("higher", {"column": "robust", "where": {"kind": "y"}, "baseline": {"kind": "x"}}, KINDS),
    ("higher", {"column": "robust", "where": {"kind": "y"}, "majority_of_pairs": True}, KINDS),
    ("row_order", {"column": "robust", "rows": [{"net": n} for n in "dcba"]}, {}),
    ("monotone", {"column": "robust", "along": "depth"}, DEPTHS),
    ("linear_effect", {"column": "robust", "along": "depth", "sign": "positive"}, DEPTHS),
    (
        "all",
        {"claims": [{"name": "monotone", "args": {"column": "robust", "along": "depth"}}]},
        DEPTHS,
    ),
]


@pytest.mark.parametrize(("name", "args", "attributes"), CASES)
def test_a_planted_claim_gets_the_right_word(
    name: str, args: dict[str, Any], attributes: dict[str, dict[str, Any]]
) -> None:
    assert word(planted(UP, attributes=attributes), name, **args) == "holds"
    assert word(planted(DOWN, attributes=attributes), name, **args) == "does not hold"
    few = planted(FLAT, n=200, attributes=attributes)
    assert word(few, name, **args) == "undecided"


@pytest.mark.parametrize("name", ["higher", "linear_effect"])
def test_what_data_cannot_decide_is_undecided(name: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "higher": {"column": "robust", "where": {"kind": "y"}},
        "linear_effect": {"column": "robust", "along": "depth", "sign": "positive"},
    }
    table = planted({"a": 0.30, "b": 0.31, "c": 0.31, "d": 0.30}, n=300,
                    attributes={k: {**KINDS[k], **DEPTHS[k]} for k in KINDS})  # fmt: skip
    assert word(table, name, **cases[name]) == "undecided"


def test_more_images_decide_what_few_cannot() -> None:
    args = {"column": "robust", "where": {"net": "b"}, "baseline": {"net": "a"}}
    shares = {"a": 0.30, "b": 0.33}
    assert word(planted(shares, n=200), "higher", **args) == "undecided"
    assert word(planted(shares, n=20_000), "higher", **args) == "holds"


def test_a_peak_is_inside() -> None:
    rising = {"a": 0.2, "b": 0.5, "c": 0.3, "d": 0.1}
    args = {"column": "robust", "along": "depth"}
    assert word(planted(rising, attributes=DEPTHS), "peak", **args) == "holds"
    at = {"column": "robust", "along": "depth", "position": 2}
    assert word(planted(rising, attributes=DEPTHS), "peak", **at) == "holds"
    assert word(planted(UP, attributes=DEPTHS), "peak", **at) == "does not hold"


def test_diminishing_steps() -> None:
    args = {"column": "robust", "along": "depth", "diminishing": True}
    slowing = planted({"a": 0.2, "b": 0.5, "c": 0.65, "d": 0.7}, attributes=DEPTHS)
    growing = planted({"a": 0.2, "b": 0.25, "c": 0.4, "d": 0.7}, attributes=DEPTHS)
    assert word(slowing, "monotone", **args) == "holds"
    assert word(growing, "monotone", **args) == "does not hold"


def test_spread_among_rows_alike_in_another_number() -> None:
    view = ValueTable(
        ("net",), (("a",), ("b",), ("c",)),
        {"robust": np.array([0.5, 0.44, 0.6]), "size": np.array([20.0, 21.0, 80.0])},
    )  # fmt: skip
    near = CLAIMS.create("value_range", {"column": "robust", "match_column": "size", "above": 0.05})
    assert near.holds(view)
    assert not CLAIMS.create(
        "value_range", {"column": "robust", "match_column": "size", "above": 0.07}
    ).holds(view)
    assert not CLAIMS.create("value_range", {"column": "robust", "below": 0.1}).holds(view)


def test_a_column_above_another_in_every_row() -> None:
    view = ValueTable(
        ("net",), (("a",), ("b",)),
        {"robust": np.array([0.3, 0.4]), "clean": np.array([0.8, 0.35])},
    )  # fmt: skip
    args = {"column": "clean", "baseline": "robust"}
    assert not CLAIMS.create("column_higher", args).holds(view)
    assert CLAIMS.create("column_higher", {**args, "where": {"net": "a"}}).holds(view)


def test_two_columns_with_other_winners() -> None:
    view = ValueTable(
        ("n",), (("a",), ("b",)), {"x": np.array([1.0, 2.0]), "y": np.array([2.0, 1.0])}
    )
    assert CLAIMS.create("different_best_rows", {"column": "x", "other": "y"}).holds(view)
    assert not CLAIMS.create("different_best_rows", {"column": "x", "other": "x"}).holds(view)


def test_a_number_that_is_missing_leaves_a_claim_undecided_and_names_it() -> None:
    table = planted({"a": 0.2, "b": 0.9})
    cells = {key: cell for key, cell in table.values.items() if key[0] != ("a",)}
    gap = StudyTable(table.axes, table.rows, cells, table.columns, table.attributes)
    result = assess_claim(
        CLAIMS.create("top", {"column": "robust", "where": {"net": "b"}}), gap.as_values()
    )
    assert result.outcome == "undecided"
    assert result.reason == "robust is missing for a: not measured yet"


@pytest.mark.parametrize("limit", [{"above": 0.0}, {"below": 0.0}])
def test_rows_that_are_all_alike_decide_no_rank_correlation(limit: dict[str, float]) -> None:
    table = planted(dict.fromkeys("abcd", 0.4), attributes=DEPTHS)
    predicate = CLAIMS.create("correlation", {"column": "robust", "other": "depth", **limit})
    result = assess_claim(predicate, table.as_values(50))
    assert result.outcome == "undecided"
    assert "constant" in result.reason


def test_a_column_that_is_constant_agrees_with_no_order() -> None:
    axes, rows = ("net",), tuple((n,) for n in "abcd")
    theirs = ValueTable(
        axes, rows, {"up": np.arange(4.0), "flat": np.arange(4.0), "few": np.full(4, 1.0)}
    )
    theirs.columns["few"][1:] = np.nan
    ours = {"up": np.arange(4.0), "flat": np.zeros(4), "few": np.arange(4.0)}
    redraws = {name: np.repeat(values[:, None], 50, axis=1) for name, values in ours.items()}
    measured = ValueTable(axes, rows, ours, redraws=redraws)
    result = {a.column: a for a in rank_agreement(measured, theirs)}
    assert result["up"].spearman == pytest.approx(1.0)
    assert result["up"].low is not None
    assert result["up"].low < 0.5  # four rows in order say little, however exact they are
    assert (result["flat"].spearman, result["flat"].rows) == (None, 4)
    assert (result["few"].spearman, result["few"].rows) == (None, 1)


def test_one_image_of_many_decides_no_correlation() -> None:
    scores = {name: np.zeros(30) for name in "abcd"}
    scores["d"][0] = 1
    cells: dict[tuple[tuple[str, ...], str], MeasuredValue]
    cells = {
        ((n,), "robust"): MeasuredValue((0,), scores=(s,), image_set="i") for n, s in scores.items()
    }
    table = StudyTable(
        ("net",), tuple((n,) for n in "abcd"), cells, ("robust",), tuple(DEPTHS.values())
    )
    for limit in ({"above": 0.5}, {"below": 0.5}):
        args = {"column": "robust", "other": "depth", **limit}
        assert word(table, "correlation", **args) == "undecided"


def test_seeds_widen_the_spread() -> None:
    same = [flags(0.5, offset=i) for i in range(3)]
    spread = [flags(s, offset=i) for i, s in enumerate((0.3, 0.5, 0.7))]
    widths = []
    for parts in (same, spread):
        cell = MeasuredValue((0, 1, 2), scores=tuple(parts), image_set="same")
        table = StudyTable(("net",), (("a",),), {(("a",), "robust"): cell}, ("robust",))
        low, high = table.intervals(table.as_values(500))[("a",), "robust"]
        assert low < cell.value < high
        widths.append(high - low)
    assert widths[1] > 3 * widths[0]


def test_intervals_of_shares_of_copies_stay_between_0_and_1() -> None:
    shares = np.zeros(50)
    shares[0] = 0.2  # a fifth of the corrupted copies of one image is right
    cell = MeasuredValue((0,), scores=(shares,), image_set="same")
    table = StudyTable(("net",), (("a",),), {(("a",), "robust"): cell}, ("robust",))
    low, high = table.intervals(table.as_values(500))[("a",), "robust"]
    assert 0 <= low < cell.value < high < 0.2


def test_a_tie_says_how_much_data_would_decide_it() -> None:
    predicate = CLAIMS.create(
        "row_order", {"column": "robust", "rows": [{"net": "b"}, {"net": "a"}]}
    )
    few = planted({"a": 0.30, "b": 0.34}, n=400)
    assert assess_claim(predicate, few.as_values(400)).outcome == "undecided"
    text = needed_data(predicate, few.as_values(400))
    factor = int(text.removeprefix("about ").split()[0])
    assert 2 < factor < 64
    values = few.as_values(400)
    noise = {"robust": (values.redraws["robust"] - values.columns["robust"][:, None])}
    enough = {"robust": values.columns["robust"][:, None] + noise["robust"] / factor**0.5}
    assert assess_claim(predicate, replace(values, redraws=enough)).outcome == "holds"
    equal = planted({"a": 0.30, "b": 0.30}, n=400)
    assert needed_data(predicate, equal.as_values(400)).startswith(
        "more seeds and test images alone"
    )
