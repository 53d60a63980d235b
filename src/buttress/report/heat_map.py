"""Robust accuracy per threat model: a table of one run, and a heat map of what was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from buttress.report.collect import RunPage
from buttress.report.formatting import format_threat
from buttress.report.leaderboard import Leaderboard, LeaderboardRow, relation_to_training
from buttress.results.threat_summary import ThreatSummary

STANDARD = "standard training"
MIN_THREATS = 4  # of a suite, from which the page of a run has a table of them


@dataclass(frozen=True)
class HeatCell:
    """Mean robust accuracy of runs with the same training under one threat model."""

    accuracy: float
    lowest: float  # of these runs
    highest: float
    is_trained_on: bool


@dataclass(frozen=True)
class HeatRow:
    training: str
    num_runs: int
    cells: tuple[HeatCell, ...]  # one per threat model
    worst_case: HeatCell

    @property
    def all_cells(self) -> tuple[HeatCell, ...]:
        return (*self.cells, self.worst_case)


@dataclass(frozen=True)
class HeatMap:
    """Rows are what runs were trained on, columns what they are attacked by."""

    threats: tuple[str, ...]
    rows: tuple[HeatRow, ...]


def training_label(run: RunPage) -> str:
    """What a run was trained on; runs with the same label are one row."""
    return " + ".join(map(format_threat, run.training_threats)) or STANDARD


def build_heat_map(board: Leaderboard) -> HeatMap | None:
    """The heat map of ranked rows; None unless trainings and threat models differ."""
    groups: dict[str, list[LeaderboardRow]] = {}
    for row in board.ranked:
        groups.setdefault(training_label(row.run), []).append(row)
    threats = tuple(dict.fromkeys(t for row in board.ranked for t in row.suite.threats))
    if len(groups) < 2 or len(threats) < 2:
        return None
    order = sorted(groups, key=lambda label: (label != STANDARD, label))
    return HeatMap(threats, tuple(_heat_row(label, groups[label], threats) for label in order))


def _heat_row(label: str, rows: Sequence[LeaderboardRow], threats: Sequence[str]) -> HeatRow:
    trained = rows[0].run.training_threats
    cells = tuple(
        _heat_cell([r.suite.threats[t].estimate.accuracy for r in rows], t in trained)
        for t in threats
    )
    worst = [r.suite.worst_case for r in rows]
    return HeatRow(label, len(rows), cells, _heat_cell(worst, False))


def _heat_cell(accuracies: Sequence[float], is_trained_on: bool) -> HeatCell:
    return HeatCell(fmean(accuracies), min(accuracies), max(accuracies), is_trained_on)


def threat_rows(row: LeaderboardRow) -> list[tuple[ThreatSummary, str]]:
    """Each threat model of a run's suite, least robust first, and its relation to training."""
    summaries = sorted(row.suite.threats.values(), key=lambda s: s.estimate.accuracy)
    if len(summaries) < MIN_THREATS:
        return []
    return [(s, relation_to_training(s.threat, row.run.training_threats)) for s in summaries]
