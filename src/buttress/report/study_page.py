"""What the page of a study shows: its claims, its table beside the published one, its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buttress.files import file_name
from buttress.records.answer import Agreement, Answer, Line, Number
from buttress.report.agreement import Pair, against
from buttress.report.figures import Figure
from buttress.report.pictures import Picture, read_picture, read_pictures
from buttress.report.studies import StudyView
from buttress.report.views import RunView
from buttress.report.words import between, duration, tenths

ROOM = 4_000_000  # characters of pictures of single runs; the rest is on the pages of the runs


@dataclass(frozen=True)
class Shown:
    """One number as the table shows it; a part that is not known is empty."""

    value: str = ""
    interval: str = ""
    published: str = ""
    difference: str = ""
    missing: str = ""
    notes: tuple[int, ...] = ()
    is_doubtful: bool = False  # untrustworthy, not only warned of
    details: str = ""  # how many images and seeds are behind it
    sort: float | None = None


@dataclass(frozen=True)
class Link:
    """A run behind a row; without a page where it is not in this report."""

    name: str
    slug: str = ""


@dataclass(frozen=True)
class TableRow:
    labels: tuple[str, ...]
    cells: tuple[Shown, ...]
    runs: tuple[Link, ...]


@dataclass(frozen=True)
class RunPicture:
    """An analysis of one run."""

    run: Link
    picture: Picture


def study_context(study: StudyView, runs: Mapping[str, RunView]) -> dict[str, Any]:
    """``runs`` by their keys."""
    answer = study.answer
    notes: dict[str, int] = {}
    rows = [table_row(line, answer, runs, notes) for line in answer.lines]
    return {
        "study": study,
        "answer": answer,
        "rows": rows,
        "notes": {n: text for text, n in notes.items()},
        "has_published": any(c.published for row in rows for c in row.cells),
        "scatters": [f for a in answer.agreement if (f := scatter_figure(a, answer))],
        "together": read_pictures(
            study.folder / f"{file_name(name)}.json" for name in answer.together
        ),
        "pictures": run_pictures(answer, runs),
        "facts": facts(answer),
        "failed": {links([key], runs)[0]: why for key, why in answer.failed.items()},
    }


def table_row(
    line: Line, answer: Answer, runs: Mapping[str, RunView], notes: dict[str, int]
) -> TableRow:
    cells = tuple(
        shown(line.numbers.get(c, Number(missing="missing")), answer.units.get(c, "percent"), notes)
        for c in answer.columns
    )
    return TableRow(line.labels, cells, links(line.runs, runs))


def shown(number: Number, unit: str, notes: dict[str, int]) -> Shown:
    value, published = finite(number.value), finite(number.published)
    low, high = finite(number.low), finite(number.high)
    known = value is not None and published is not None
    parts = {"images": number.images, "seeds": number.seeds}
    return Shown(
        value="" if value is None else spelt(value, unit),
        interval=""
        if value is None or low is None or high is None
        else between(spelt(low, unit), spelt(high, unit)),
        published="" if published is None else spelt(published, unit),
        difference=signed((value or 0) - (published or 0), unit) if known else "",
        missing=number.missing or ("missing" if value is None else ""),
        notes=tuple(notes.setdefault(text, len(notes) + 1) for text in number.distrusted),
        is_doubtful=value is not None and number.untrustworthy,
        details=", ".join(f"{count} {what}" for what, count in parts.items() if count),
        sort=value,
    )


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def spelt(value: float, unit: str) -> str:
    return tenths(value) if unit == "percent" else f"{value:.4g}"


def signed(value: float, unit: str) -> str:
    """``+1.2``: percentage points, or the number."""
    return f"{100 * value:+.1f}" if unit == "percent" else f"{value:+.3g}"


def links(keys: Sequence[str], runs: Mapping[str, RunView]) -> tuple[Link, ...]:
    """Named by what tells the runs of a row apart: training, and seed where there are several."""
    found = [runs[key] for key in keys if key in runs]
    seeds = {run.spec.seed for run in found}
    made = []
    for key in keys:
        run = runs.get(key)
        seed = f", seed {run.spec.seed}" if run is not None and len(seeds) > 1 else ""
        made.append(Link(key) if run is None else Link(f"{run.objective}{seed}", run.slug))
    return tuple(made)


def scatter_figure(agreement: Agreement, answer: Answer) -> Figure | None:
    """Published against measured, one point per row."""
    column, unit = agreement.column, answer.units.get(agreement.column, "percent")
    pairs = []
    for line in answer.lines:
        number = line.numbers.get(column)
        value = None if number is None else finite(number.value)
        published = None if number is None else finite(number.published)
        if number is None or value is None or published is None:
            continue
        low, high = finite(number.low), finite(number.high)
        name = " / ".join(line.labels)
        pairs.append(Pair(name, published, value, value if low is None else low,
                          value if high is None else high, bool(number.distrusted)))  # fmt: skip
    if not pairs:
        return None
    return Figure(column.replace("_", " "), against(pairs, column, unit), correlation(agreement))


def correlation(agreement: Agreement) -> str:
    if agreement.spearman is None:
        return f"{agreement.rows} rows: too few, or too alike, for a rank correlation"
    said = f"rank correlation {agreement.spearman:.2f}"
    if agreement.low is not None and agreement.high is not None:
        said += f" (95% {agreement.low:.2f} to {agreement.high:.2f})"
    return f"{said} over {agreement.rows} rows"


def run_pictures(answer: Answer, runs: Mapping[str, RunView]) -> dict[str, list[RunPicture]]:
    """The analyses of single runs by name; pictures as long as there is room, sentences always."""
    keys = dict.fromkeys(key for line in answer.lines for key in line.runs)
    found: dict[str, list[RunPicture]] = {}
    room = ROOM
    for name in answer.analyses:
        for run in (runs[key] for key in keys if key in runs):
            picture = read_picture(run.run.analysis_file(name))
            if picture is None or not (picture.says or picture.address or picture.reason):
                continue
            room -= len(picture.address)
            if room < 0:
                picture = Picture(picture.name, picture.says, "", picture.reason)
            link = Link(f"{run.label} · {run.objective}", run.slug)
            found.setdefault(name, []).append(RunPicture(link, picture))
    return found


def facts(answer: Answer) -> dict[str, str]:
    """What the study cost and what it was asked to do."""
    cost = {
        (k.removesuffix("_seconds").replace("_", " ") + " time")
        if k.endswith("seconds")
        else k.replace("_", " "): duration(v) if k.endswith("seconds") else f"{v:,.6g}"
        for k, v in answer.cost.items()
    }
    settings = {
        k.replace("_", " "): ", ".join(map(str, v)) if isinstance(v, list) else str(v)
        for k, v in answer.settings.items()
        if v is not None
    }
    return {
        "scale": answer.scale,
        "runs": f"{answer.done} of {answer.runs} done",
        **cost,
        **settings,
    }
