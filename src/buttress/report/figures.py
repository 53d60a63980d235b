"""Which figures a page has: views -> charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from buttress.report.analyses import Curve, Sparsity
from buttress.report.board import Board, Row, relation
from buttress.report.charts import (
    COLOURS,
    Bar,
    Frame,
    Point,
    Series,
    bars,
    histogram,
    lines,
    scatter,
)
from buttress.report.views import ClassShare, RunView, Share
from buttress.report.words import percent, pretty_threat
from buttress.statistics import wilson

CLASSES = 24  # more classes than this are shown by their weakest and strongest


@dataclass(frozen=True)
class Key:
    """One line of a legend."""

    name: str
    colour: int
    hollow: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading and caption."""

    title: str
    svg: str
    caption: str = ""
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Cast:
    """The rows that are drawn: one colour per model, hollow or dashed for standard training."""

    rows: tuple[Row, ...]
    colours: Mapping[str, int]
    left_out: int

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(
            Key(caption(r.run), self.colours[r.run.model], r.run.is_standard) for r in self.rows
        )


def cast(board: Board) -> Cast:
    """The best rows, as many as there are colours; the best standard model is always among them."""
    rows = list(board.rows[:COLOURS])
    standard = next((r for r in board.rows if r.run.is_standard), None)
    if standard is not None and all(r is not standard for r in rows):
        rows[-1] = standard
    models = list(dict.fromkeys(r.run.model for r in rows))
    colours = {model: index for index, model in enumerate(models)}
    return Cast(tuple(rows), colours, len(board.rows) - len(rows))


def caption(run: RunView) -> str:
    return f"{run.label} · {run.objective}"


def attack_figures(board: Board, drawn: Cast) -> list[Figure]:
    """One panel of bars per attack, the worst case first."""
    worst = panel(drawn, [r.worst.share for r in drawn.rows], "Worst case")
    panels = [Figure("Worst case", worst, "the image survives every attack below")]
    for index, column in enumerate(board.columns):
        shares = [r.cells[index].share for r in drawn.rows]
        title = "No attack" if column.definition.is_clean else column.title
        about = [pretty_threat(column.definition.threat), column.training]
        text = " · ".join(a for a in about if a) or "the images as they are"
        panels.append(Figure(title, panel(drawn, shares, title), text))
    return panels


def panel(drawn: Cast, shares: Sequence[Share | None], title: str) -> str:
    items = [
        replace(
            share_bar(r.run.label, share, drawn.colours[r.run.model], r.run.is_standard),
            detail=r.run.objective,
        )
        for r, share in zip(drawn.rows, shares, strict=True)
    ]
    return bars(items, f"{title}: accuracy of {len(items)} models")


def share_bar(name: str, share: Share | None, colour: int = 0, hollow: bool = False) -> Bar:
    if share is None:
        return Bar(name, None)
    return Bar(name, share.value, low=share.low, high=share.high, colour=colour, hollow=hollow)


def curve_figures(drawn: Cast) -> list[Figure]:
    """Accuracy against eps, one figure per attack and norm."""
    groups: dict[tuple[str, str], list[tuple[RunView, Curve]]] = {}
    for row in drawn.rows:
        for curve in row.run.curves:
            groups.setdefault((curve.norm, curve.attack), []).append((row.run, curve))
    return [curve_figure(members, drawn.colours) for members in groups.values()]


def curve_figure(members: Sequence[tuple[RunView, Curve]], colours: Mapping[str, int]) -> Figure:
    curve = members[0][1]
    series = [
        Series(caption(r), c.eps, c.accuracy, c.low, c.high, colours[r.model], r.is_standard)
        for r, c in members
    ]
    counts = sorted({c.images for _, c in members})
    said = "; ".join(f"{s.name} {percent(s.y[0])} to {percent(s.y[-1])}" for s in series)
    where = f"{curve.attack}, {pretty_threat(curve.norm)}"
    frame = Frame(x_label=f"eps ({pretty_threat(curve.norm)})", y_label="accuracy")
    images = " or ".join(str(n) for n in counts)
    return Figure(
        f"Accuracy against {pretty_threat(curve.norm)} eps",
        lines(series, frame, f"Accuracy against eps, {where}. {said}"),
        f"{curve.attack} on {images} images; bands are 95% intervals",
        tuple(Key(s.name, s.colour, s.dashed) for s in series),
    )


def sparsity_figure(board: Board, drawn: Cast) -> Figure | None:
    """Weight sparsity against worst case, every ranked model."""
    coloured = {r.run.slug for r in drawn.rows}
    points = [
        Point(
            name=caption(r.run),
            x=r.run.sparsity.ratio,
            y=r.worst.share.value,
            low=r.worst.share.low,
            high=r.worst.share.high,
            colour=drawn.colours[r.run.model] if r.run.slug in coloured else None,
            hollow=r.run.is_standard,
        )
        for r in board.ranked
        if r.run.sparsity is not None and r.worst.share is not None
    ]
    if len(points) < 2:
        return None
    frame = Frame(x_label="sparsity: share of near-zero weights", y_label="worst case")
    said = "; ".join(f"{p.name} {percent(p.x)}, {percent(p.y)}" for p in points[:COLOURS])
    svg = scatter(points, frame, f"Weight sparsity and worst-case accuracy. {said}")
    keys = drawn.keys if len(drawn.rows) else ()
    return Figure("Worst case against weight sparsity", svg, "one point per model", keys)


def row_figure(board: Board, row: Row) -> Figure:
    """One model under every attack of its suite."""
    items = [share_bar("worst case", row.worst.share, 1)]
    for column, found in zip(board.columns, row.cells, strict=True):
        items.append(share_bar(column.title, found.share, 0, column.definition.is_clean))
    seen = [relation(c.definition.threat, row.run.trained_on) for c in board.columns]
    unseen = [c.title for c, s in zip(board.columns, seen, strict=True) if s.startswith("unseen")]
    about = f"not seen in training: {', '.join(unseen)}" if unseen else ""
    svg = bars(items, f"{row.run.label} under each attack", width=400, names=130)
    return Figure("Under each attack", svg, about)


def class_figure(classes: Sequence[ClassShare]) -> Figure:
    """Worst-case accuracy by class, weakest first; a tick shows the clean accuracy."""
    order = sorted(classes, key=lambda c: (c.worst.value, c.name))
    about = "bar: survives every attack; tick: without an attack"
    if len(order) > CLASSES:
        half = CLASSES // 2
        about += f"; the {half} weakest and {half} strongest of {len(order)} classes"
        order = [*order[:half], *order[-half:]]
    items = [
        replace(share_bar(c.name, c.worst, 1), mark=c.clean.value if c.clean else None)
        for c in order
    ]
    return Figure("By class", bars(items, "Worst case by class", width=400, names=130), about)


def training_figures(history: Sequence[Mapping[str, Any]], objective: str) -> list[Figure]:
    """Accuracies, loss and learning rate over epochs."""
    if len(history) < 2:
        return []
    names = {
        "val_robust": "validation, attacked",
        "val_clean": "validation, clean",
        "train_accuracy": f"training batches ({objective})",
    }
    shares = [over_epochs(history, key, name, c) for c, (key, name) in enumerate(names.items())]
    best = [e for e in history if e.get("best")]
    about = f"best epoch: {best[-1].get('epoch')}" if best else ""
    if shares[0].low or shares[1].low:
        about = f"{about}; bands are 95% intervals".removeprefix("; ")
    return [
        epochs_figure("Accuracy", shares, about, is_share=True),
        epochs_figure("Loss", [over_epochs(history, "loss", "loss", 0)]),
        epochs_figure("Learning rate", [over_epochs(history, "lr", "rate", 7)]),
    ]


def epochs_figure(
    title: str, series: Sequence[Series], about: str = "", is_share: bool = False
) -> Figure:
    series = [s for s in series if s.y]
    frame = Frame("epoch", title.lower(), is_share, width=400, height=230)
    ends = [f"{s.name} {percent(s.y[-1]) if is_share else f'{s.y[-1]:.3g}'}" for s in series]
    svg = lines(series, frame, f"{title} over epochs; at the end: {'; '.join(ends) or 'unknown'}")
    keys = tuple(Key(s.name, s.colour, s.dashed) for s in series) if len(series) > 1 else ()
    return Figure(title, svg, about, keys)


def weight_figure(found: Sparsity) -> Figure:
    ordered = {"all": found.counts.get("all", ()), **found.counts}
    counts = {k: v for k, v in ordered.items() if v}
    svg = histogram(found.edges, counts, Frame("weight", "count", is_share=False))
    keys = tuple(Key(k, i % COLOURS) for i, k in enumerate(list(counts)[1:]))
    return Figure("Weights", svg, "grey: all weights; counts on a log axis", keys)


def over_epochs(history: Sequence[Mapping[str, Any]], key: str, name: str, colour: int) -> Series:
    """One quantity at the epochs where it was measured; with a band if it is a share of images."""
    kept = [e for e in history if is_number(e.get("epoch")) and is_number(e.get(key))]
    epochs, values = ([float(e[k]) for e in kept] for k in ("epoch", key))
    counts = [e.get("val_images") for e in kept] if key.startswith("val_") else []
    images = [n for n in counts if isinstance(n, int) and n > 0]
    low: list[float] = []
    high: list[float] = []
    if len(images) == len(values):
        spans = [wilson(round(v * n), n) for v, n in zip(values, images, strict=True)]
        low, high = [s.low for s in spans], [s.high for s in spans]
    return Series(name, epochs, values, low, high, colour, key == "train_accuracy")


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
