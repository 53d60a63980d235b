"""Leaderboards: only runs judged on the same images by the same suite are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from buttress.records.corruption import CORRUPTION
from buttress.records.diagnosis import are_trustworthy, texts
from buttress.registry import natural
from buttress.report.views import Definition, Result, RunView, Share, SuiteView


@dataclass(frozen=True)
class Cell:
    """One number of the table, or why there is none; notes count from 1 below the table."""

    share: Share | None = None
    absent: str = ""
    notes: tuple[int, ...] = ()
    is_doubtful: bool = False  # a finding says that the number cannot be trusted
    is_best: bool = False


@dataclass(frozen=True)
class Row:
    run: RunView
    suite: SuiteView
    results: tuple[Result | None, ...]  # one per column
    cells: tuple[Cell, ...]
    worst: Cell
    rank: int | None = None  # equal numbers share a rank


@dataclass(frozen=True)
class Column:
    definition: Definition
    title: str
    training: str = ""  # "trained on", "unseen" ... where it is the same for all robust models


@dataclass(frozen=True)
class Board:
    """One table: rows by worst case, the unranked last."""

    dataset: str
    split: str
    suite: str
    images: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @cached_property
    def ranked(self) -> tuple[Row, ...]:
        return tuple(r for r in self.rows if r.rank is not None)

    @cached_property
    def has_corruptions(self) -> bool:
        return any(c.definition.attack == CORRUPTION for c in self.columns)

    @cached_property
    def has_sparsity(self) -> bool:
        return any(r.run.sparsity for r in self.rows)


def boards(runs: Iterable[RunView]) -> list[Board]:
    """All tables, the one with the most models and images first."""
    groups: dict[tuple[str, str, str, str], list[tuple[RunView, SuiteView]]] = {}
    for run in runs:
        for suite in (s for s in run.suites if s.results):
            key = (suite.dataset or run.spec.dataset, suite.split, suite.suite, suite.images)
            groups.setdefault(key, []).append((run, suite))
    made = [build(key[0], members) for key, members in groups.items()]
    return sorted(made, key=lambda b: (-len(b.ranked), -len(b.rows), -b.images, b.dataset, b.suite))


def build(dataset: str, members: Sequence[tuple[RunView, SuiteView]]) -> Board:
    definitions = columns(suite for _, suite in members)
    notes: dict[str, int] = {}
    rows = [row(run, suite, definitions, notes) for run, suite in members]
    rows = mark_best(ranked(rows))
    first = members[0][1]
    titles = titled(definitions)
    threats = {run.trained_on for run, _ in members if not run.is_standard}
    training = next(iter(threats)) if len(threats) == 1 else ""
    return Board(
        dataset=dataset,
        split=first.split,
        suite=first.suite,
        images=len(first.survived),
        columns=tuple(Column(d, titles[d], relation(d.threat, training)) for d in definitions),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def columns(suites: Iterable[SuiteView]) -> tuple[Definition, ...]:
    """Every attack that any run has, or should have: clean first, then in the suite's order."""
    places: dict[Definition, int] = {}
    named: dict[str, int] = {}
    for suite in suites:
        for found in suite.results.values():
            known = places.get(found.definition, found.position)
            places[found.definition] = min(known, found.position)
        for name in (*suite.unreadable, *suite.expected):
            named.setdefault(name, len(named))
    known_names = {d.name for d in places}
    for name, place in named.items():
        if name not in known_names:
            places[Definition(name)] = 10**6 + place
    return tuple(sorted(places, key=lambda d: (not d.is_clean, places[d], natural(d.name), d.args)))


def titled(definitions: Sequence[Definition]) -> dict[Definition, str]:
    """Names, with what differs added where one name stands for several attacks."""
    names = [d.name for d in definitions]
    return {
        d: d.name if names.count(d.name) == 1 else f"{d.name} {d.threat} {d.args}".strip()
        for d in definitions
    }


def row(
    run: RunView, suite: SuiteView, definitions: Sequence[Definition], notes: dict[str, int]
) -> Row:
    results = tuple(matching(suite, d) for d in definitions)
    # A warning about the model itself is in all its records: it is shown once, at the worst case.
    common = set.intersection(*(set(r.warnings) for r in suite.results.values()))
    marks = {note(notes, text) for text in sorted(common)}
    cells = tuple(
        cell(found, suite.unreadable.get(d.name, ""), common, notes)
        for d, found in zip(definitions, results, strict=True)
    )
    marks.update(n for c in cells for n in c.notes)
    if not run.run.is_trained:
        marks.add(note(notes, f"training is not finished: the run's state is {run.state}"))
    said = run.diagnosis if run.diagnosis and suite.is_of(run.diagnosis.weights) else None
    findings = (*suite.findings, *(said.findings if said else ()))
    known = {*common, *(w for r in suite.results.values() for w in r.warnings)}
    marks.update(note(notes, t) for t in texts(findings) if t not in known)
    doubtful = not are_trustworthy(findings)
    cells = tuple(replace(c, is_doubtful=doubtful and c.share is not None) for c in cells)
    whole = all(found is not None for found in results)
    share = Share(int(suite.survived.sum()), len(suite.survived)) if whole else None
    worst = Cell(share, "" if whole else "missing", tuple(sorted(marks)), doubtful and whole)
    return Row(run, suite, results, cells, worst)


def matching(suite: SuiteView, definition: Definition) -> Result | None:
    found = suite.results.get(definition.name)
    return found if found is not None and found.definition == definition else None


def cell(found: Result | None, trouble: str, common: set[str], notes: dict[str, int]) -> Cell:
    if found is not None:
        own = [w for w in found.warnings if w not in common]
        return Cell(found.share, notes=tuple(note(notes, w) for w in own))
    return Cell(None, "unreadable", (note(notes, trouble),)) if trouble else Cell(None, "missing")


def note(notes: dict[str, int], text: str) -> int:
    """The number of a note; the same text has one number."""
    return notes.setdefault(text, len(notes) + 1)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Best worst case first; rows without one that can be trusted follow by name, unranked."""
    whole = [r for r in rows if r.worst.share is not None and not r.worst.is_doubtful]
    whole.sort(key=lambda r: (-hits(r.worst), -clean_hits(r), natural(r.run.label)))
    placed: list[Row] = []
    for index, found in enumerate(whole):
        tied = placed and hits(placed[-1].worst) == hits(found.worst)
        placed.append(replace(found, rank=placed[-1].rank if tied else index + 1))
    rest = [r for r in rows if r.worst.share is None or r.worst.is_doubtful]
    return placed + sorted(rest, key=lambda r: natural(r.run.label))


def mark_best(rows: Sequence[Row]) -> list[Row]:
    """Marks the best number of each column, among those that can be trusted."""
    width = len(rows[0].cells) if rows else 0
    best = [max(trusted_hits(r.cells[c]) for r in rows) for c in range(width)]
    marked = []
    for r in rows:
        cells = tuple(
            replace(c, is_best=c.share is not None and trusted_hits(c) == b)
            for c, b in zip(r.cells, best, strict=True)
        )
        marked.append(replace(r, cells=cells))
    return marked


def hits(found: Cell) -> float:
    return found.share.hits if found.share is not None else -1


def trusted_hits(found: Cell) -> float:
    return -1 if found.is_doubtful else hits(found)


def clean_hits(found: Row) -> float:
    return hits(found.cells[0]) if found.cells else -1


def relation(threat: str, trained_on: str) -> str:
    """How an attack's threat relates to the one of training."""
    if not threat or not trained_on:
        return ""
    if threat == trained_on:
        return "trained on"
    same_norm = threat.partition(":")[0] == trained_on.partition(":")[0]
    return "same norm, other size" if same_norm else "unseen in training"
