"""Claims on pairs of rows, on profiles and on what is unbeaten: true, false and undecidable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from buttress.studies.claims import CLAIMS, UndecidableClaim, assess_claim
from buttress.studies.table import MeasuredValue, StudyTable, ValueTable

NETS = ("v", "v-r", "w", "w-r")
ABOUT: tuple[dict[str, str | float], ...] = (
    {"family": "v", "form": "base"},
    {"family": "v", "form": "r"},
    {"family": "w", "form": "base"},
    {"family": "w", "form": "r"},
)
GAIN = {"where": {"form": "r"}, "baseline": {"form": "base"}, "match_on": ["family"]}


def view(**columns: list[float]) -> ValueTable:
    numbers = {name: np.array(values) for name, values in columns.items()}
    return ValueTable(("net",), tuple((n,) for n in NETS), numbers, ABOUT)


def planted(shares: list[float], n: int = 2000) -> StudyTable:
    """One column ``robust`` with so many images right, spread over the images at random."""
    cells: dict[tuple[tuple[str, ...], str], MeasuredValue] = {}
    for index, (net, share) in enumerate(zip(NETS, shares, strict=True)):
        right = (np.arange(n) < share * n).astype(float)
        scores = np.random.default_rng(index).permutation(right)
        cells[(net,), "robust"] = MeasuredValue((0,), scores=(scores,), image_set="same")
    return StudyTable(("net",), tuple((n,) for n in NETS), cells, ("robust",), ABOUT)


def word(table: StudyTable, name: str, **args: Any) -> str:
    return assess_claim(CLAIMS.create(name, args), table.as_values(300)).outcome


def test_a_gain_is_over_the_row_that_is_else_alike() -> None:
    args = {"column": ["robust"], **GAIN}
    assert word(planted([0.3, 0.4, 0.5, 0.6]), "gain", **args) == "holds"
    assert word(planted([0.5, 0.4, 0.3, 0.6]), "gain", **args) == "does not hold"
    assert word(planted([0.5, 0.51, 0.3, 0.31], n=200), "gain", **args) == "undecided"
    half = {**args, "min_share": 0.5}
    assert word(planted([0.5, 0.4, 0.3, 0.6]), "gain", **half) == "holds"


def test_cells_that_a_claim_excepts_are_not_asked() -> None:
    table = view(robust=[0.3, 0.4, 0.5, 0.6], cw=[0.3, 0.4, 0.5, 0.4])
    args = {"column": ["robust", "cw"], **GAIN}
    excepted = {"family": "w", "column": ["cw"]}
    plain = CLAIMS.create("gain", args)
    assert not plain.holds(table)
    assert "3 of 4 cells; not in gain of w-r in cw" in plain.evidence(table)
    assert CLAIMS.create("gain", {**args, "exceptions": [excepted]}).holds(table)
    other = {"family": "v", "column": ["cw"]}
    assert not CLAIMS.create("gain", {**args, "exceptions": [other]}).holds(table)


def test_rows_without_a_counterpart_cannot_gain() -> None:
    with pytest.raises(UndecidableClaim, match="matching baseline"):
        CLAIMS.create("gain", {"column": ["x"], **GAIN, "match_on": ["net"]}).holds(
            view(x=[1, 2, 3, 4])
        )


def test_the_smaller_drop() -> None:
    ends = {
        "from_to": [{"net": "v"}, {"net": "v-r"}],
        "baseline_from_to": [{"net": "w"}, {"net": "w-r"}],
    }
    args = {"column": "robust", **ends}
    assert word(planted([0.9, 0.85, 0.9, 0.6]), "smaller_row_drop", **args) == "holds"
    assert word(planted([0.9, 0.6, 0.9, 0.85]), "smaller_row_drop", **args) == "does not hold"
    assert word(planted([0.9, 0.8, 0.9, 0.8], n=300), "smaller_row_drop", **args) == "undecided"
    both = CLAIMS.create("smaller_row_drop", {"column": ["a", "b"], **ends})
    assert not both.holds(view(a=[0.9, 0.8, 0.9, 0.7], b=[0.9, 0.5, 0.9, 0.8]))


def test_unbeaten_within_a_margin() -> None:
    args = {"column": "robust", "where": {"net": "v"}, "margin": 0.02}
    assert word(planted([0.6, 0.5, 0.4, 0.3]), "best_within_margin", **args) == "holds"
    assert word(planted([0.3, 0.5, 0.4, 0.3]), "best_within_margin", **args) == "does not hold"
    assert word(planted([0.30, 0.32, 0.1, 0.1], n=300), "best_within_margin", **args) == "undecided"
    assert CLAIMS.create("best_within_margin", args).holds(view(robust=[0.50, 0.51, 0.4, 0.4]))
    assert not CLAIMS.create("best_within_margin", args).holds(view(robust=[0.50, 0.53, 0.4, 0.4]))


def profile(*rows: list[float]) -> ValueTable:
    numbers = np.array(rows).T
    names = tuple((n,) for n in NETS[: len(rows)])
    return ValueTable(
        ("net",), names, {f"b{i}": v for i, v in enumerate(numbers)}, ABOUT[: len(rows)]
    )


def test_a_sawtooth_rises_along_a_group_and_falls_to_the_next() -> None:
    args: dict[str, Any] = {"groups": [["b0", "b1", "b2"], ["b3", "b4"]]}
    saw = CLAIMS.create("sawtooth", args)
    assert saw.holds(profile([1, 2, 3, 2, 4]))
    assert not saw.holds(profile([1, 2, 3, 4, 5]))
    assert not saw.holds(profile([1, 3, 2, 1, 4]))
    assert not saw.holds(profile([1, 2, 3, 2, 4], [1, 2, 3, 4, 5]))
    first = CLAIMS.create("sawtooth", {**args, "where": {"net": "v"}})
    assert first.holds(profile([1, 2, 3, 2, 4], [1, 2, 3, 4, 5]))
    most = CLAIMS.create("sawtooth", {**args, "min_share": 0.5})
    assert most.holds(profile([1, 2, 3, 2, 4], [1, 3, 2, 4, 5]))
    with pytest.raises(UndecidableClaim, match="two groups"):
        CLAIMS.create("sawtooth", {"groups": [["b0", "b1"]]}).holds(profile([1, 2]))


def test_a_published_table_speaks_of_its_own_rows_only() -> None:
    nan = float("nan")
    table = view(x=[0.1, nan, 0.3, nan], y=[nan, nan, 0.3, nan]).measured_rows()
    assert table.rows == (("v",), ("w",))
    assert table.row_attributes(1) == {"net": "w", "family": "w", "form": "base"}
    assert table.values("x").tolist() == [0.1, 0.3]
