"""The figures of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from buttress.report.analyses import EpsCurveResult, SparsityView
from buttress.report.charts import (
    NUM_COLORS,
    BarItem,
    ChartFrame,
    LineSeries,
    ScatterPoint,
    draw_bars,
    draw_histogram,
    draw_lines,
    draw_scatter,
)
from buttress.report.collect import RunPage
from buttress.report.formatting import format_percent, format_threat
from buttress.report.leaderboard import Leaderboard, LeaderboardRow, relation_to_training
from buttress.results.core import CLEAN, WORST_CASE, AccuracyEstimate
from buttress.results.evaluation import ClassResult
from buttress.statistics import wilson_interval

MAX_CLASSES_DRAWN = 24  # of more classes, only the least and most robust are drawn


@dataclass(frozen=True)
class LegendEntry:
    """One line of a legend."""

    name: str
    color: int
    is_hollow: bool = False


@dataclass(frozen=True)
class ReportFigure:
    """A drawing with its heading and caption."""

    title: str
    svg: str
    caption: str = ""
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True)
class DrawnRows:
    """The rows that are drawn: one color per model, hollow or dashed for standard training."""

    rows: tuple[LeaderboardRow, ...]
    color_by_model: Mapping[str, int]
    num_omitted: int

    @property
    def legend(self) -> tuple[LegendEntry, ...]:
        return tuple(
            LegendEntry(run_caption(r.run), self.color_by_model[r.run.model], r.run.is_standard)
            for r in self.rows
        )


def select_drawn_rows(board: Leaderboard) -> DrawnRows:
    """The best rows, as many as there are colors; the best standard model is always among them."""
    rows = list(board.rows[:NUM_COLORS])
    standard = next((r for r in board.rows if r.run.is_standard), None)
    if standard is not None and all(r is not standard for r in rows):
        rows[-1] = standard
    models = list(dict.fromkeys(r.run.model for r in rows))
    color_by_model = {model: index for index, model in enumerate(models)}
    return DrawnRows(tuple(rows), color_by_model, len(board.rows) - len(rows))


def run_caption(run: RunPage) -> str:
    return f"{run.label} · {run.objective}"


def attack_figures(board: Leaderboard, selection: DrawnRows) -> list[ReportFigure]:
    """One panel of bars per attack; worst-case robust accuracy first."""
    title, worst_case = (
        "Worst-case robust accuracy",
        [r.worst_case.estimate for r in selection.rows],
    )
    panels = [
        ReportFigure(
            title, attack_panel(selection, worst_case, title), "robust to every attack below"
        )
    ]
    for index, column in enumerate(board.columns):
        estimates = [r.cells[index].estimate for r in selection.rows]
        title = "Clean" if column.definition.is_clean else column.title
        about = [format_threat(column.definition.threat), column.relation]
        text = " · ".join(a for a in about if a) or "unperturbed images"
        panels.append(ReportFigure(title, attack_panel(selection, estimates, title), text))
    return panels


def attack_panel(
    selection: DrawnRows, estimates: Sequence[AccuracyEstimate | None], title: str
) -> str:
    items = [
        replace(
            accuracy_bar(
                r.run.label, estimate, selection.color_by_model[r.run.model], r.run.is_standard
            ),
            tooltip_detail=r.run.objective,
        )
        for r, estimate in zip(selection.rows, estimates, strict=True)
    ]
    return draw_bars(items, f"{title}: accuracy of {len(items)} models")


def accuracy_bar(
    name: str, estimate: AccuracyEstimate | None, color: int = 0, is_hollow: bool = False
) -> BarItem:
    if estimate is None:
        return BarItem(name, None)
    low, high = estimate.interval
    return BarItem(name, estimate.accuracy, low=low, high=high, color=color, is_hollow=is_hollow)


def curve_figures(selection: DrawnRows) -> list[ReportFigure]:
    """Accuracy against eps, one figure per attack and norm."""
    groups: dict[tuple[str, str], list[tuple[RunPage, EpsCurveResult]]] = {}
    for row in selection.rows:
        for curve in row.run.curves:
            groups.setdefault((curve.norm, curve.attack), []).append((row.run, curve))
    return [curve_figure(members, selection.color_by_model) for members in groups.values()]


def curve_figure(
    members: Sequence[tuple[RunPage, EpsCurveResult]], color_by_model: Mapping[str, int]
) -> ReportFigure:
    curve = members[0][1]
    series = [
        LineSeries(
            run_caption(r), c.eps, c.accuracy, c.low, c.high, color_by_model[r.model], r.is_standard
        )
        for r, c in members
    ]
    counts = sorted({c.images for _, c in members})
    description = "; ".join(
        f"{s.name} {format_percent(s.y[0])} to {format_percent(s.y[-1])}" for s in series
    )
    attack_text = f"{curve.attack}, {format_threat(curve.norm)}"
    frame = ChartFrame(x_label=f"eps ({format_threat(curve.norm)})", y_label="accuracy")
    images = " or ".join(str(n) for n in counts)
    return ReportFigure(
        f"Accuracy against {format_threat(curve.norm)} eps",
        draw_lines(series, frame, f"Accuracy against eps, {attack_text}. {description}"),
        f"{curve.attack} on {images} images; bands are 95% intervals",
        tuple(LegendEntry(s.name, s.color, s.is_dashed) for s in series),
    )


def sparsity_figure(board: Leaderboard, selection: DrawnRows) -> ReportFigure | None:
    """Worst-case robust accuracy against weight sparsity, for every ranked model."""
    drawn_slugs = {r.run.slug for r in selection.rows}
    points = [
        ScatterPoint(
            name=run_caption(r.run),
            x=r.run.sparsity.sparsity,
            y=r.worst_case.estimate.accuracy,
            low=r.worst_case.estimate.interval.low,
            high=r.worst_case.estimate.interval.high,
            color=selection.color_by_model[r.run.model] if r.run.slug in drawn_slugs else None,
            is_hollow=r.run.is_standard,
        )
        for r in board.ranked
        if r.run.sparsity is not None and r.worst_case.estimate is not None
    ]
    if len(points) < 2:
        return None
    frame = ChartFrame(
        x_label="sparsity (fraction of near-zero weights)", y_label="worst-case robust accuracy"
    )
    description = "; ".join(
        f"{p.name} {format_percent(p.x)}, {format_percent(p.y)}" for p in points[:NUM_COLORS]
    )
    svg = draw_scatter(
        points, frame, f"Weight sparsity and worst-case robust accuracy. {description}"
    )
    keys = selection.legend if len(selection.rows) else ()
    return ReportFigure("Robustness against weight sparsity", svg, "one point per model", keys)


def model_figure(board: Leaderboard, row: LeaderboardRow) -> ReportFigure:
    """One model under every attack of its suite."""
    items = [accuracy_bar("worst case", row.worst_case.estimate, 1)]
    for column, cell in zip(board.columns, row.cells, strict=True):
        items.append(accuracy_bar(column.title, cell.estimate, 0, column.definition.is_clean))
    relations = [
        relation_to_training(c.definition.threat, row.run.training_threats) for c in board.columns
    ]
    unseen_attacks = [
        c.title for c, s in zip(board.columns, relations, strict=True) if s == "not trained on"
    ]
    about = f"not trained on: {', '.join(unseen_attacks)}" if unseen_attacks else ""
    svg = draw_bars(items, f"{row.run.label} under each attack", width=400, name_width=130)
    return ReportFigure("Accuracy per attack", svg, about)


def class_figure(classes: Mapping[str, ClassResult]) -> ReportFigure:
    """Worst-case robust accuracy by class, lowest first; a tick shows clean accuracy."""
    order = sorted(classes, key=lambda name: (classes[name].accuracy[WORST_CASE].accuracy, name))
    about = "bar: worst-case robust accuracy; tick: clean accuracy"
    if len(order) > MAX_CLASSES_DRAWN:
        half = MAX_CLASSES_DRAWN // 2
        about += f"; the {half} least and {half} most robust of {len(order)} classes"
        order = [*order[:half], *order[-half:]]
    items = []
    for name in order:
        accuracy = classes[name].accuracy
        clean = accuracy[CLEAN].accuracy if CLEAN in accuracy else None
        items.append(replace(accuracy_bar(name, accuracy[WORST_CASE], 1), tick_value=clean))
    return ReportFigure(
        "By class",
        draw_bars(items, "Worst-case robust accuracy by class", width=400, name_width=130),
        about,
    )


def training_figures(history: Sequence[Mapping[str, Any]], objective: str) -> list[ReportFigure]:
    """Accuracies, loss and learning rate over epochs."""
    if len(history) < 2:
        return []
    names = {
        "val_robust": "validation robust accuracy",
        "val_clean": "validation clean accuracy",
        "train_accuracy": f"training batches ({objective})",
    }
    shares = [epoch_series(history, key, name, c) for c, (key, name) in enumerate(names.items())]
    best = [e for e in history if e.get("best")]
    about = f"best epoch: {best[-1].get('epoch')}" if best else ""
    if shares[0].low or shares[1].low:
        about = f"{about}; bands are 95% intervals".removeprefix("; ")
    return [
        epoch_figure("Accuracy", shares, about, is_share=True),
        epoch_figure("Loss", [epoch_series(history, "loss", "loss", 0)]),
        epoch_figure("Learning rate", [epoch_series(history, "lr", "rate", 7)]),
    ]


def epoch_figure(
    title: str, series: Sequence[LineSeries], about: str = "", is_share: bool = False
) -> ReportFigure:
    series = [s for s in series if s.y]
    frame = ChartFrame("epoch", title.lower(), is_share, width=400, height=230)
    ends = [f"{s.name} {format_percent(s.y[-1]) if is_share else f'{s.y[-1]:.3g}'}" for s in series]
    svg = draw_lines(
        series, frame, f"{title} over epochs; at the end: {'; '.join(ends) or 'unknown'}"
    )
    keys = (
        tuple(LegendEntry(s.name, s.color, s.is_dashed) for s in series) if len(series) > 1 else ()
    )
    return ReportFigure(title, svg, about, keys)


def weight_figure(sparsity: SparsityView) -> ReportFigure:
    ordered = {"all": sparsity.counts.get("all", ()), **sparsity.counts}
    counts = {k: v for k, v in ordered.items() if v}
    svg = draw_histogram(sparsity.edges, counts, ChartFrame("weight", "count", is_percent=False))
    keys = tuple(LegendEntry(k, i % NUM_COLORS) for i, k in enumerate(list(counts)[1:]))
    return ReportFigure("Weights", svg, "gray: all weights; counts on a log axis", keys)


def epoch_series(
    history: Sequence[Mapping[str, Any]], key: str, name: str, color: int
) -> LineSeries:
    """A quantity at the epochs where it was measured; with a band if it is an accuracy."""
    measured_epochs = [e for e in history if is_number(e.get("epoch")) and is_number(e.get(key))]
    epochs, values = ([float(e[k]) for e in measured_epochs] for k in ("epoch", key))
    counts = [e.get("val_images") for e in measured_epochs] if key.startswith("val_") else []
    images = [n for n in counts if isinstance(n, int) and n > 0]
    low: list[float] = []
    high: list[float] = []
    if len(images) == len(values):
        spans = [wilson_interval(round(v * n), n) for v, n in zip(values, images, strict=True)]
        low, high = [s.low for s in spans], [s.high for s in spans]
    return LineSeries(name, epochs, values, low, high, color, key == "train_accuracy")


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
