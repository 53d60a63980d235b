"""Published numbers beside ours: rows of a table, and of nothing else.

They are not ranked, not drawn, and in no headline, best value or interval, because their images,
attacks and seeds are not in the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from buttress.records.robustbench import CORRUPTIONS, Published, Reading, board_dataset
from buttress.registry import canonical, natural
from buttress.report.board import Board
from buttress.report.views import Definition
from buttress.report.words import number_of, pretty_threat, tenths, web_link


@dataclass(frozen=True)
class ReferenceRow:
    """One published record; shares where it has a number for a column."""

    id: str
    link: str  # empty unless it may be followed
    about: str  # "WideResNet-28-10, ICML 2020"
    title: str
    cells: tuple[float | None, ...]  # one per column of the board
    more: tuple[float | None, ...]  # one per column of `References`
    remark: str


@dataclass(frozen=True)
class References:
    columns: tuple[str, ...] = ()  # numbers that no column of the board holds
    rows: tuple[ReferenceRow, ...] = ()


def references(board: Board, published: Sequence[Published]) -> References:
    """The published records about the data of a board."""
    dataset = board_dataset(board.dataset)
    chosen = [p for p in published if p.dataset == dataset]
    definitions = [column.definition for column in board.columns]
    unplaced = {adversary(p) for p in chosen if not any(is_same(d, p) for d in definitions)}
    columns = tuple(sorted(unplaced, key=natural))
    rows = [row(p, definitions, columns) for p in chosen]
    rows.sort(key=lambda r: natural(r.id))
    return References(columns, tuple(rows))


def row(
    found: Published, definitions: Sequence[Definition], columns: Sequence[str]
) -> ReferenceRow:
    cells = tuple(
        found.clean if d.is_clean else found.robust if is_same(d, found) else None
        for d in definitions
    )
    is_placed = any(is_same(d, found) for d in definitions)
    more = tuple(
        found.robust if not is_placed and name == adversary(found) else None for name in columns
    )
    about = ", ".join(t for t in (found.architecture, found.venue) if t)
    link = web_link(found.link)
    return ReferenceRow(found.id, link, about, found.title, cells, more, remark(found))


def is_same(definition: Definition, found: Published) -> bool:
    """Whether a column holds what was published: standard AutoAttack in the same ball."""
    is_standard = canonical(definition.attack) == "autoattack" and definition.args in (
        "",
        "version=standard",
    )
    return is_standard and bool(found.threat) and definition.threat == found.threat


def adversary(found: Published) -> str:
    """The title of a published number that has no column of ours."""
    if found.board == CORRUPTIONS:
        return CORRUPTIONS
    return f"autoattack {pretty_threat(found.threat or found.board)}"


def remark(found: Published) -> str:
    parts = []
    if found.is_unreliable:
        parts.append("marked unreliable by its source")
    if found.external is not None:
        parts.append(f"{tenths(found.external)} is the lowest that others found")
    return "; ".join(parts)


def unused(reading: Reading, boards: Sequence[Board]) -> list[str]:
    """What was wrong with the files, and data sets that no table here is about."""
    shown = {board_dataset(board.dataset) for board in boards}
    left = Counter(p.dataset for p in reading.rows if p.dataset not in shown)
    return [
        *reading.problems,
        *(
            f"{number_of(count, 'published record')} about {dataset} left out: no model here was "
            "attacked on it"
            for dataset, count in sorted(left.items())
        ),
    ]
