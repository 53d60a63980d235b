"""Published accuracies as extra rows of a leaderboard.

They are not ranked, not drawn, and in no headline, best value or interval, because their images,
attacks and seeds are not in the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from buttress.registry import natural_sort_key, normalize_name
from buttress.report.formatting import format_tenths, format_threat, pluralize, safe_link
from buttress.report.leaderboard import Leaderboard
from buttress.results.attack_record import AttackDefinition
from buttress.results.robustbench import (
    CORRUPTIONS_LEADERBOARD,
    LeaderboardEntries,
    LeaderboardEntry,
    leaderboard_dataset,
)


@dataclass(frozen=True)
class PublishedRow:
    """One published record; accuracies of the columns that it has."""

    id: str
    link: str  # empty unless it is a safe URL
    about: str  # "WideResNet-28-10, ICML 2020"
    title: str
    cells: tuple[float | None, ...]  # one per column of the board
    extra_cells: tuple[float | None, ...]  # one per column of `PublishedRows`
    remark: str


@dataclass(frozen=True)
class PublishedRows:
    columns: tuple[str, ...] = ()  # accuracies without a column in the leaderboard
    rows: tuple[PublishedRow, ...] = ()


def build_published_rows(
    board: Leaderboard, published: Sequence[LeaderboardEntry]
) -> PublishedRows:
    """Select the published records of a leaderboard's dataset."""
    dataset = leaderboard_dataset(board.dataset)
    entries = [p for p in published if p.dataset == dataset]
    definitions = [column.definition for column in board.columns]
    extra_titles = {
        attack_title(p) for p in entries if not any(is_same_attack(d, p) for d in definitions)
    }
    columns = tuple(sorted(extra_titles, key=natural_sort_key))
    rows = [build_published_row(p, definitions, columns) for p in entries]
    rows.sort(key=lambda r: natural_sort_key(r.id))
    return PublishedRows(columns, tuple(rows))


def build_published_row(
    entry: LeaderboardEntry, definitions: Sequence[AttackDefinition], columns: Sequence[str]
) -> PublishedRow:
    cells = tuple(
        entry.clean_accuracy
        if d.is_clean
        else entry.robust_accuracy
        if is_same_attack(d, entry)
        else None
        for d in definitions
    )
    is_placed = any(is_same_attack(d, entry) for d in definitions)
    more = tuple(
        entry.robust_accuracy if not is_placed and name == attack_title(entry) else None
        for name in columns
    )
    about = ", ".join(t for t in (entry.architecture, entry.venue) if t)
    link = safe_link(entry.link)
    return PublishedRow(entry.id, link, about, entry.title, cells, more, entry_remark(entry))


def is_same_attack(definition: AttackDefinition, entry: LeaderboardEntry) -> bool:
    """Whether a column is the published one: standard AutoAttack, same threat model."""
    is_standard = normalize_name(definition.attack) == "autoattack" and definition.args in (
        "",
        "version=standard",
    )
    return is_standard and bool(entry.threat) and definition.threat == entry.threat


def attack_title(entry: LeaderboardEntry) -> str:
    """Title of a published column that is not in the leaderboard."""
    if entry.leaderboard == CORRUPTIONS_LEADERBOARD:
        return CORRUPTIONS_LEADERBOARD
    return f"autoattack {format_threat(entry.threat or entry.leaderboard)}"


def entry_remark(entry: LeaderboardEntry) -> str:
    parts = []
    if entry.is_unreliable:
        parts.append("marked unreliable by its source")
    if entry.lowest_reported_accuracy is not None:
        parts.append(
            f"lowest accuracy reported by others: {format_tenths(entry.lowest_reported_accuracy)}"
        )
    return "; ".join(parts)


def unused_entry_messages(reading: LeaderboardEntries, boards: Sequence[Leaderboard]) -> list[str]:
    """Problems of the files, and records of datasets without a leaderboard."""
    datasets = {leaderboard_dataset(board.dataset) for board in boards}
    omitted = Counter(p.dataset for p in reading.entries if p.dataset not in datasets)
    return [
        *reading.problems,
        *(
            f"{pluralize(count, 'published record')} for {dataset} not shown: no model here was "
            "evaluated on it"
            for dataset, count in sorted(omitted.items())
        ),
    ]
