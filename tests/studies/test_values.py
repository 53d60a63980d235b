"""Claims on single rows and on falls between columns, on planted data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from buttress.studies.claims import CLAIMS, assess_claim
from buttress.studies.table import MeasuredValue, RowLabels, StudyTable, ValueTable

FIRST = {"kind": "x"}
SECOND = {"kind": "y"}


def planted(columns: Mapping[str, tuple[float, ...]], n: int) -> StudyTable:
    """Rows a, b, ... of the kinds x, y, x, y ...; each number a share of independent images."""
    names = "abcd"[: len(next(iter(columns.values())))]
    rows: tuple[RowLabels, ...] = tuple((name,) for name in names)
    cells: dict[tuple[RowLabels, str], MeasuredValue] = {}
    for place, (column, shares) in enumerate(columns.items()):
        for index, (row, share) in enumerate(zip(rows, shares, strict=True)):
            right = np.zeros(n)
            right[: round(share * n)] = 1
            flags = np.random.default_rng(10 * place + index).permutation(right)
            cells[row, column] = MeasuredValue((0,), scores=(flags,), image_set="same")
    kinds = tuple(FIRST if i % 2 == 0 else SECOND for i in range(len(rows)))
    return StudyTable(("net",), rows, cells, tuple(columns), kinds)


def word(columns: Mapping[str, tuple[float, ...]], name: str, n: int = 4000, **args: Any) -> str:
    table = planted(columns, n)
    return assess_claim(CLAIMS.create(name, args), table.as_values(300)).outcome


def test_between() -> None:
    args: dict[str, Any] = {"column": "p", "where": FIRST, "low": 0.4, "high": 0.6}
    assert word({"p": (0.5, 0.9)}, "between", **args) == "holds"
    assert word({"p": (0.3, 0.5)}, "between", **args) == "does not hold"
    assert word({"p": (0.7, 0.5)}, "between", **args) == "does not hold"
    assert word({"p": (0.41, 0.5)}, "between", n=100, **args) == "undecided"
    assert word({"p": (0.9, 0.9)}, "between", column="p", low=0.5) == "holds"


def test_the_order_of_columns() -> None:
    args: dict[str, Any] = {"order": ["p", "q", "r"], "where": FIRST}
    assert word({"p": (0.6, 0), "q": (0.4, 1), "r": (0.2, 0)}, "column_order", **args) == "holds"
    wrong = {"p": (0.6, 0.6), "q": (0.2, 0.4), "r": (0.4, 0.2)}
    assert word(wrong, "column_order", **args) == "does not hold"
    near = {"p": (0.31, 0.6), "q": (0.30, 0.4), "r": (0.1, 0.2)}
    assert word(near, "column_order", n=100, **args) == "undecided"


def test_a_denial() -> None:
    claim = {"name": "higher", "args": {"column": "p", "where": FIRST, "margin": 0.01}}
    assert word({"p": (0.5, 0.9)}, "not", claim=claim) == "holds"
    assert word({"p": (0.9, 0.5)}, "not", claim=claim) == "does not hold"
    assert word({"p": (0.52, 0.5)}, "not", n=100, claim=claim) == "undecided"


def test_one_kind_falls_less_from_a_column_to_another() -> None:
    args: dict[str, Any] = {"column": "p", "to_column": "q", "where": FIRST}
    assert word({"p": (0.9, 0.6), "q": (0.8, 0.3)}, "smaller_column_drop", **args) == "holds"
    assert (
        word({"p": (0.9, 0.6), "q": (0.5, 0.5)}, "smaller_column_drop", **args) == "does not hold"
    )
    near = {"p": (0.9, 0.6), "q": (0.8, 0.49)}
    assert word(near, "smaller_column_drop", n=100, **args) == "undecided"


def test_every_pair_must_be_ordered_if_that_is_claimed() -> None:
    args: dict[str, Any] = {"column": "p", "where": FIRST, "baseline": SECOND}
    mixed = {"p": (0.9, 0.2, 0.4, 0.5)}
    assert word(mixed, "higher", **args) == "holds"
    assert word(mixed, "higher", all_pairs=True, **args) == "does not hold"
    assert word({"p": (0.9, 0.2, 0.6, 0.5)}, "higher", all_pairs=True, **args) == "holds"


@pytest.mark.parametrize("name", ["between", "column_order", "smaller_column_drop", "not"])
def test_what_is_missing_is_named(name: str) -> None:
    view = ValueTable(("net",), (("a",), ("b",)), {c: np.array([np.nan, 0.5]) for c in "pq"})
    cases: dict[str, dict[str, Any]] = {
        "between": {"column": "p"},
        "column_order": {"order": ["p", "q"]},
        "smaller_column_drop": {"column": "p", "to_column": "q", "where": {"net": "a"}},
        "not": {"claim": {"name": "between", "args": {"column": "p"}}},
    }
    result = assess_claim(CLAIMS.create(name, cases[name]), view)
    assert result.outcome == "undecided"
    assert "p is missing for a: not measured yet" in result.reason
