"""Leaderboards: only runs evaluated on the same images with the same suite are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from buttress.registry import natural_sort_key
from buttress.report.collect import RunPage
from buttress.results.attack_record import AttackDefinition
from buttress.results.core import AccuracyEstimate
from buttress.results.evaluation import Evaluation, SuiteEntryResult
from buttress.results.run import shorten_paths
from buttress.results.suite_spec import CORRUPTION_ATTACK
from buttress.statistics import SeedSummary, summarize_seeds, summarize_seeds_and_images
from buttress.system.files import digest
from buttress.threats.norm_ball import NORMS


@dataclass(frozen=True)
class AccuracyCell:
    """One value of the table, or why it is missing; notes are numbered from 1."""

    estimate: AccuracyEstimate | None = None
    missing_reason: str = ""
    notes: tuple[int, ...] = ()
    is_untrustworthy: bool = False  # a finding says that it is not trustworthy
    is_best: bool = False


@dataclass(frozen=True)
class LeaderboardRow:
    run: RunPage
    suite: Evaluation
    results: tuple[SuiteEntryResult | None, ...]  # one per column
    cells: tuple[AccuracyCell, ...]
    worst_case: AccuracyCell
    rank: int | None = None  # equal numbers share a rank


@dataclass(frozen=True)
class LeaderboardColumn:
    definition: AttackDefinition
    title: str
    # "trained on", "not trained on" ... where it is the same for all robust models.
    relation: str = ""


@dataclass(frozen=True)
class Leaderboard:
    """One table: rows by worst-case robust accuracy, unranked rows last."""

    dataset: str
    split: str
    suite: str
    images: int
    columns: tuple[LeaderboardColumn, ...]
    rows: tuple[LeaderboardRow, ...]
    notes: tuple[str, ...]

    @cached_property
    def ranked(self) -> tuple[LeaderboardRow, ...]:
        return tuple(r for r in self.rows if r.rank is not None)

    @cached_property
    def has_corruptions(self) -> bool:
        return any(c.definition.attack == CORRUPTION_ATTACK for c in self.columns)

    @cached_property
    def has_sparsity(self) -> bool:
        return any(r.run.sparsity for r in self.rows)


def build_leaderboards(runs: Iterable[RunPage]) -> list[Leaderboard]:
    """Build all leaderboards, those with the most models and images first."""
    groups: dict[tuple[str, str, str, str], list[tuple[RunPage, Evaluation]]] = {}
    for run in runs:
        for suite in (e for e in run.evaluations if e.results):
            key = (suite.dataset or run.spec.dataset, suite.split, suite.suite, suite.images_digest)
            groups.setdefault(key, []).append((run, suite))
    leaderboards = [build_leaderboard(shorten_paths(key[0]), m) for key, m in groups.items()]
    return sorted(
        leaderboards, key=lambda b: (-len(b.ranked), -len(b.rows), -b.images, b.dataset, b.suite)
    )


def build_leaderboard(dataset: str, members: Sequence[tuple[RunPage, Evaluation]]) -> Leaderboard:
    definitions = collect_columns(suite for _, suite in members)
    notes: dict[str, int] = {}
    rows = [build_row(run, suite, definitions, notes) for run, suite in members]
    rows = mark_best(rank_rows(rows))
    first = members[0][1]
    titles = column_titles(definitions)
    threats = {run.training_threats for run, _ in members if not run.is_standard}
    trained = next(iter(threats)) if len(threats) == 1 else ()
    return Leaderboard(
        dataset=dataset,
        split=first.split,
        suite=first.suite,
        images=len(first),
        columns=tuple(
            LeaderboardColumn(d, titles[d], relation_to_training(d.threat, trained))
            for d in definitions
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def collect_columns(suites: Iterable[Evaluation]) -> tuple[AttackDefinition, ...]:
    """Every attack that any run has, or should have: clean first, then in the suite's order."""
    positions: dict[AttackDefinition, int] = {}
    expected_names: dict[str, int] = {}
    for suite in suites:
        for result in suite.results.values():
            first_position = positions.get(result.definition, result.suite_position)
            positions[result.definition] = min(first_position, result.suite_position)
        for name in map(suite.result_name, (*suite.unreadable, *suite.expected_entries)):
            expected_names.setdefault(name, len(expected_names))
    known_names = {d.name for d in positions}
    for name, position in expected_names.items():
        if name not in known_names:
            positions[AttackDefinition(name)] = 10**6 + position
    return tuple(
        sorted(
            positions,
            key=lambda d: (not d.is_clean, positions[d], natural_sort_key(d.name), d.args),
        )
    )


def column_titles(definitions: Sequence[AttackDefinition]) -> dict[AttackDefinition, str]:
    """Titles of the columns; attacks with the same name are distinguished by their settings."""
    names = [d.name for d in definitions]
    return {
        d: d.name if names.count(d.name) == 1 else f"{d.name} {d.threat} {d.args}".strip()
        for d in definitions
    }


def build_row(
    run: RunPage,
    suite: Evaluation,
    definitions: Sequence[AttackDefinition],
    notes: dict[str, int],
) -> LeaderboardRow:
    results = tuple(result_for(suite, d) for d in definitions)
    unreadable = {suite.result_name(name): reason for name, reason in suite.unreadable.items()}
    # A warning about the model itself is in all its records: it is shown once, at the worst case.
    common = set.intersection(*(set(r.warnings) for r in suite.results.values()))
    note_numbers = {note_number(notes, text) for text in sorted(common)}
    is_untrustworthy = not suite.is_trustworthy
    cells = tuple(
        build_cell(result, unreadable.get(d.name, ""), common, notes, is_untrustworthy)
        for d, result in zip(definitions, results, strict=True)
    )
    note_numbers.update(n for c in cells for n in c.notes)
    note_numbers.update(
        note_number(notes, t) for t in (*run.unfinished_warning, *suite.shared_warnings)
    )
    is_complete = all(result is not None for result in results)
    worst_case = AccuracyCell(
        suite.estimate() if is_complete else None,
        "" if is_complete else "missing",
        tuple(sorted(note_numbers)),
        is_untrustworthy and is_complete,
    )
    return LeaderboardRow(run, suite, results, cells, worst_case)


def result_for(suite: Evaluation, definition: AttackDefinition) -> SuiteEntryResult | None:
    result = suite.results.get(definition.name)
    return result if result is not None and result.definition == definition else None


def build_cell(
    result: SuiteEntryResult | None,
    read_error: str,
    common: set[str],
    notes: dict[str, int],
    is_untrustworthy: bool,
) -> AccuracyCell:
    if result is not None:
        own_notes = tuple(note_number(notes, w) for w in result.warnings if w not in common)
        return AccuracyCell(result.estimate, "", own_notes, is_untrustworthy)
    if read_error:
        return AccuracyCell(None, "unreadable", (note_number(notes, read_error),))
    return AccuracyCell(None, "missing")


def note_number(notes: dict[str, int], text: str) -> int:
    """Number of a note; equal texts share a number."""
    return notes.setdefault(text, len(notes) + 1)


def rank_rows(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Sort by worst-case robust accuracy; rows without a trustworthy one are unranked."""
    rankable = [
        r for r in rows if r.worst_case.estimate is not None and not r.worst_case.is_untrustworthy
    ]
    rankable.sort(
        key=lambda r: (
            -correct_count(r.worst_case),
            -(correct_count(r.cells[0]) if r.cells else -1),  # clean accuracy
            natural_sort_key(r.run.label),
        )
    )
    ranked_rows: list[LeaderboardRow] = []
    for index, row in enumerate(rankable):
        is_tied = ranked_rows and correct_count(ranked_rows[-1].worst_case) == correct_count(
            row.worst_case
        )
        ranked_rows.append(replace(row, rank=ranked_rows[-1].rank if is_tied else index + 1))
    unranked = [r for r in rows if r.worst_case.estimate is None or r.worst_case.is_untrustworthy]
    return ranked_rows + sorted(unranked, key=lambda r: natural_sort_key(r.run.label))


def mark_best(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Mark the best trustworthy value of each column."""
    width = len(rows[0].cells) if rows else 0
    best = [max(trusted_correct_count(r.cells[c]) for r in rows) for c in range(width)]
    marked = []
    for r in rows:
        cells = tuple(
            replace(c, is_best=c.estimate is not None and trusted_correct_count(c) == b)
            for c, b in zip(r.cells, best, strict=True)
        )
        marked.append(replace(r, cells=cells))
    return marked


def correct_count(cell: AccuracyCell) -> float:
    return cell.estimate.correct if cell.estimate is not None else -1


def trusted_correct_count(cell: AccuracyCell) -> float:
    return -1 if cell.is_untrustworthy else correct_count(cell)


def relation_to_training(threat: str, trained: Sequence[str]) -> str:
    """Relation of an attack's threat model to those of training."""
    if not threat or not trained:
        return ""
    if threat in trained:
        return "trained on"
    kind = threat.partition(":")[0]
    if kind not in {other.partition(":")[0] for other in trained}:
        return "not trained on"
    return "same norm, other eps" if kind in NORMS else "same kind, other size"


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their training seed only."""

    run: RunPage  # any of them
    seeds: tuple[int, ...]
    worst_case: SeedSummary  # its interval accounts for seeds and images
    cells: tuple[SeedSummary | None, ...]  # one per column; intervals account for seeds


def seed_groups(board: Leaderboard) -> list[SeedGroup]:
    """Group complete runs that differ in the seed only, most robust first."""
    rows_by_training: dict[str, dict[int, LeaderboardRow]] = {}
    for row in board.ranked:
        identity = {k: v for k, v in row.run.spec.identity().items() if k != "seed"}
        rows_by_training.setdefault(digest(identity), {}).setdefault(row.run.spec.seed, row)
    groups = [
        build_seed_group(list(rows.values())) for rows in rows_by_training.values() if len(rows) > 1
    ]
    return sorted(groups, key=lambda g: (-g.worst_case.mean, g.run.model))


def build_seed_group(rows: Sequence[LeaderboardRow]) -> SeedGroup:
    rows = sorted(rows, key=lambda r: r.run.spec.seed)
    columns = zip(*(r.cells for r in rows), strict=True)
    return SeedGroup(
        run=rows[0].run,
        seeds=tuple(r.run.spec.seed for r in rows),
        worst_case=summarize_seeds_and_images(np.stack([r.suite.robust_scores for r in rows])),
        cells=tuple(
            summarize_seeds([c.estimate.accuracy for c in cells if c.estimate is not None])
            if all(c.estimate is not None for c in cells)
            else None
            for cells in columns
        ),
    )
