"""How often outcomes on claims are wrong or open, on simulated tables whose truth is known.

    python benchmarks/claim_outcomes.py [--repeats N] [--out docs/measured/claim_outcomes.md]

Every repeat draws seeds and test images again, and in the last part the rows too; each claim is
then assessed on the table as a study would. Images have a difficulty in common, so that rows are
paired.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.studies.claims import CLAIMS, Predicate, assess_claim
from buttress.studies.table import CellKey, MeasuredValue, StudyTable, ValueTable

ROWS, BASE = 8, 0.4
SEED_SD = 0.005  # of an accuracy over training seeds
COMMON_DIFFICULTY = 0.6  # share of the variance of an image's outcome that all rows have in common
ROW_SD = 0.03  # between rows of one kind
LIMIT = 0.3  # of a correlation
NAMES = tuple((f"r{i}",) for i in range(ROWS))
ATTRIBUTES = tuple(
    {"kind": "x" if i < ROWS // 2 else "y", "pair": i % (ROWS // 2), "depth": i}
    for i in range(ROWS)
)
STEPS = np.arange(ROWS, dtype=float)
PATTERNS = {  # of the true accuracies; with a negative effect every claim below is false
    "a": STEPS,
    "b": STEPS - 2,
    "constant": np.zeros(ROWS),
    "swapped": np.array([0, 1, 2, 3, 4, 5, 7, 6.0]),
    "hump": np.array([0, 1, 2, 3, 3, 2, 1, 0.0]),
    "slowing": np.cumsum([0, 7, 6, 5, 4, 3, 2, 1.0]) / 4,
    "block_1": np.zeros(ROWS),
    "block_2": np.full(ROWS, 2.0),
    "block_3": np.full(ROWS, -1.0),
    "block_4": np.full(ROWS, 1.0),
}
KIND_Y, KIND_X = {"kind": "y"}, {"kind": "x"}


def _rows(*indices: int) -> list[dict[str, str]]:
    return [{"row": f"r{i}"} for i in indices]


FIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "higher": ("higher", {"column": "a", "where": KIND_Y, "baseline": KIND_X}),
    "higher, majority of pairs": (
        "higher",
        {"column": "a", "where": KIND_Y, "baseline": KIND_X, "majority_of_pairs": True},
    ),
    "higher, all pairs": (
        "higher",
        {"column": "a", "where": {"row": ["r6", "r7"]}, "baseline": {"row": ["r0", "r1"]},
         "all_pairs": True},
    ),
    "column_higher": ("column_higher", {"column": "a", "baseline": "b"}),
    "smaller_column_drop": (
        "smaller_column_drop", {"column": "constant", "to_column": "a", "where": KIND_Y},
    ),
    "gain": (
        "gain", {"column": ["a"], "where": KIND_Y, "baseline": KIND_X, "match_on": ["pair"]},
    ),
    "gain, 3 of 4": (
        "gain",
        {"column": ["a"], "where": KIND_Y, "baseline": KIND_X, "match_on": ["pair"],
         "min_share": 0.75},
    ),
    "smaller_row_drop": (
        "smaller_row_drop",
        {"column": "a", "from_to": _rows(1, 0), "baseline_from_to": _rows(7, 0)},
    ),
    "top": ("top", {"column": "a", "where": {"row": "r7"}}),
    "top, all rows": (
        "top", {"column": "a", "where": {"row": ["r6", "r7"]}, "count": 3, "all_rows": True},
    ),
    "different_best_rows": ("different_best_rows", {"column": "a", "other": "swapped"}),
    "best_within_margin": (
        "best_within_margin", {"column": "a", "where": {"row": "r7"}, "margin": 0.01},
    ),
    "between": ("between", {"column": "a", "where": KIND_Y, "low": BASE}),
    "column_order": ("column_order", {"order": ["a", "b"], "where": {"row": ["r0", "r7"]}}),
    "row_order": ("row_order", {"column": "a", "rows": _rows(7, 5, 2, 0)}),
    "monotone": ("monotone", {"column": "a", "along": "depth"}),
    "monotone, diminishing": (
        "monotone", {"column": "slowing", "along": "depth", "diminishing": True},
    ),
    "linear_effect": ("linear_effect", {"column": "a", "along": "depth", "sign": "positive"}),
    "peak": ("peak", {"column": "hump", "along": "depth"}),
    "value_range, above": ("value_range", {"column": "a", "above": 0.02}),
    "value_range, below": ("value_range", {"column": "a", "below": 0.02}),
    "sawtooth": ("sawtooth", {"groups": [["block_1", "block_2"], ["block_3", "block_4"]],
                              "where": {"row": "r0"}}),
    "all": ("all", {"claims": [
        {"name": "row_order", "args": {"column": "a", "rows": _rows(7, 0)}},
        {"name": "column_higher", "args": {"column": "a", "baseline": "b"}},
    ]}),
    "not": ("not", {"claim": {
        "name": "higher", "args": {"column": "a", "where": KIND_X, "baseline": KIND_Y}}}),
}  # fmt: skip
SITUATIONS = {  # name -> effect per step of a pattern
    "clearly true": 0.05,
    "noisy": 0.01,
    "barely true": 0.0001,
    "tied": 0.0,
    "barely false": -0.0001,
    "clearly false": -0.05,
    "floored": 0.0,
}
SAMPLED: dict[str, tuple[str, dict[str, Any]]] = {
    "higher, redrawn rows": (
        "higher", {"column": "a", "where": KIND_Y, "baseline": KIND_X, "redraw_rows": True},
    ),
    "smaller_column_drop, redrawn rows": (
        "smaller_column_drop",
        {"column": "constant", "to_column": "a", "where": KIND_Y, "redraw_rows": True},
    ),
    "correlation, above": ("correlation", {"column": "a", "other": "b", "above": LIMIT}),
    "correlation, below": ("correlation", {"column": "a", "other": "b", "below": LIMIT}),
}  # fmt: skip


@dataclass
class Tally:
    """Outcomes on tables with a known truth."""

    wrong: int = 0
    right: int = 0
    count: int = 0

    def add(self, outcome: str, truth: bool) -> None:
        self.count += 1
        self.right += outcome == ("holds" if truth else "does not hold")
        self.wrong += outcome == ("does not hold" if truth else "holds")


def draw_table(
    accuracies: Mapping[str, NDArray[np.float64]],
    images: int,
    seeds: int,
    generator: np.random.Generator,
) -> StudyTable:
    """A measured table with these true accuracies, on new images and with new seeds."""
    quantile = np.vectorize(NormalDist().inv_cdf)
    common = generator.standard_normal(images) * COMMON_DIFFICULTY**0.5
    cells: dict[CellKey, MeasuredValue] = {}
    for column, true_accuracies in accuracies.items():
        rows = NAMES[:1] if column.startswith("block") else NAMES  # one row is enough for a profile
        for row, accuracy in zip(rows, true_accuracies, strict=False):
            by_seed = accuracy + SEED_SD * generator.standard_normal((seeds, 1)) * (accuracy > 0)
            own = generator.standard_normal((seeds, images)) * (1 - COMMON_DIFFICULTY) ** 0.5
            correct = common + own < quantile(np.clip(by_seed, 1e-9, 1 - 1e-9))
            scores = tuple(correct.astype(np.float64))
            cells[row, column] = MeasuredValue(tuple(range(seeds)), scores, image_set="images")
    return StudyTable(("row",), NAMES, cells, tuple(accuracies), ATTRIBUTES)


def create_predicates(claims: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Predicate]:
    return {title: CLAIMS.create(name, args) for title, (name, args) in claims.items()}


def simulate_fixed_rows(
    situation: str, images: int, seeds: int, repeats: int, seed: int = 0
) -> dict[str, Tally]:
    """Tally the outcomes on rows that are always the same."""
    effect, base = SITUATIONS[situation], 0.0 if situation == "floored" else BASE
    accuracies = {
        name: np.clip(base + effect * pattern, 0.0, 0.98) for name, pattern in PATTERNS.items()
    }
    truth = ValueTable(("row",), NAMES, accuracies, ATTRIBUTES)
    predicates, generator = create_predicates(FIXED), np.random.default_rng(seed)
    tallies = {title: Tally() for title in predicates}
    for _ in range(repeats):
        table = draw_table(accuracies, images, seeds, generator).as_values()
        for title, predicate in predicates.items():
            tallies[title].add(assess_claim(predicate, table).outcome, predicate.holds(truth))
    return tallies


def simulate_redrawn_rows(
    situation: str, images: int, seeds: int, repeats: int, seed: int = 0
) -> dict[str, Tally]:
    """Tally the outcomes on rows that are drawn again from their kinds."""
    predicates, generator = create_predicates(SAMPLED), np.random.default_rng(seed)
    tallies = {title: Tally() for title in predicates}
    is_true, is_clear = situation.endswith("true"), situation.startswith("clearly")
    for title, predicate in predicates.items():
        if "correlation" in title:
            is_above = is_true == ("above" in title)
            spearman = LIMIT + (0.65 if is_clear else 0.001) * (1 if is_above else -1)
        for _ in range(repeats):
            if "correlation" in title:
                accuracies = _draw_correlated_rows(spearman, generator)
            else:
                gap = (0.15 if is_clear else 0.0001) * (1 if is_true else -1)
                accuracies = _draw_kinds(gap, generator)
            table = draw_table(accuracies, images, seeds, generator).as_values()
            tallies[title].add(assess_claim(predicate, table).outcome, is_true)
    return tallies


def _draw_kinds(gap: float, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Rows of two kinds whose mean accuracies have this gap."""
    kinds = np.repeat([-0.5, 0.5], ROWS // 2)
    rows = BASE + gap * kinds + ROW_SD * generator.standard_normal(ROWS)
    return {"a": rows, "constant": np.full(ROWS, 0.8)}


def _draw_correlated_rows(
    spearman: float, generator: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """Rows of a population with this correlation."""
    pearson = 2 * np.sin(np.pi * spearman / 6)  # of two normal variables
    first, second = generator.standard_normal((2, ROWS))
    related = pearson * first + np.sqrt(1 - pearson**2) * second
    return {name: np.clip(BASE + 0.1 * z, 0.02, 0.98) for name, z in (("a", first), ("b", related))}


def table_lines(repeats: int) -> Iterator[str]:
    settings = ((20, 1), (300, 1), (300, 3))
    yield "| claim | images, seeds | " + " | ".join(SITUATIONS) + " |"
    yield "| --- | --- |" + " --- |" * len(SITUATIONS)
    for images, seeds in settings:
        results = {s: simulate_fixed_rows(s, images, seeds, repeats) for s in SITUATIONS}
        for title in FIXED:
            cells = [_format(results[s][title]) for s in SITUATIONS]
            yield f"| `{title}` | {images}, {seeds} | " + " | ".join(cells) + " |"
    redrawn = [s for s in SITUATIONS if s.startswith(("clearly", "barely"))]
    for images, seeds in settings[-1:]:
        results = {s: simulate_redrawn_rows(s, images, seeds, repeats) for s in redrawn}
        for title in SAMPLED:
            cells = [_format(results[s][title]) if s in results else "" for s in SITUATIONS]
            yield f"| `{title}` | {images}, {seeds} | " + " | ".join(cells) + " |"


def _format(tally: Tally) -> str:
    """Wrong and right firm outcomes in percent."""
    return f"{100 * tally.wrong / tally.count:.0f} / {100 * tally.right / tally.count:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    text = "\n".join(table_lines(args.repeats)) + "\n"
    print(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
