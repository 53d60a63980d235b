"""Views -> HTML through the templates beside this file. All text is escaped by Jinja."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from buttress import __version__
from buttress.records.robustbench import Reading
from buttress.report import figures
from buttress.report.board import Board, Row, relation
from buttress.report.collect import Details
from buttress.report.compare_page import embedded
from buttress.report.headline import champions, headline, remaining
from buttress.report.method import method
from buttress.report.references import references, unused
from buttress.report.seeds import groups
from buttress.report.studies import StudyView
from buttress.report.study_page import Link, study_context
from buttress.report.views import Collection, RunView
from buttress.report.words import (
    duration,
    meaning,
    number_of,
    percent,
    pretty_threat,
    tenths,
)

NOTHING = Reading((), ())


@dataclass(frozen=True)
class Script:
    """A script of ours; the page allows it by its hash, and no other."""

    text: Markup
    hash: str


@dataclass(frozen=True)
class Site:
    """What pages link to."""

    studies: Sequence[StudyView] = ()
    groups: Sequence[Mapping[str, Any]] = ()  # models that can be compared
    slugs: Mapping[str, str] = field(default_factory=dict)  # page by the key of the run

    @property
    def comparable(self) -> frozenset[str]:
        return frozenset(row["slug"] for group in self.groups for row in group["rows"])


class Pages:
    """Renders pages; one object serves a whole report."""

    def __init__(self, title: str, subtitle: str, site: Site | None = None) -> None:
        self._environment = environment()
        self._site = site or Site()
        self._comparable = self._site.comparable
        names = ("sort.js", "filter.js", "compare.js")
        self._scripts = {name: script(name) for name in names}
        self._shared = {
            "report_title": title,
            "subtitle": subtitle,
            "version": __version__,
            "style": asset("style.css"),
        }

    def index(
        self,
        found: Collection,
        boards: Sequence[Board],
        published: Reading = NOTHING,
        problems: Sequence[str] = (),
    ) -> str:
        contexts = [board_context(b, i, boards) for i, b in enumerate(boards, 1)]
        for context in contexts:
            context["references"] = references(context["board"], published.rows)
        return self._render(
            "index.html",
            scripts=("sort.js", "filter.js"),
            root="",
            boards=contexts,
            studies=self._site.studies,
            can_compare=bool(self._site.groups),
            choices=choices(boards),
            unfinished=[r for r in found.runs if r.state != "done"],
            unevaluated=[r for r in found.runs if r.state == "done" and not evaluated(r)],
            broken=found.broken,
            problems=[
                *problems,
                *(p for r in found.runs for p in r.problems),
                *unused(published, boards),
            ],
            count=len(found.runs),
        )

    def model(
        self,
        run: RunView,
        places: Sequence[tuple[Board, Row]],
        details: Details,
        problems: Sequence[str] = (),
    ) -> str:
        origin = finetuned_from(run)
        return self._render(
            "model.html",
            root="../",
            run=run,
            can_compare=run.slug in self._comparable,
            pictures=details.pictures,
            origin=origin,
            origin_run=Link(
                origin.get("source", ""), self._site.slugs.get(origin.get("key", ""), "")
            ),
            places=[place_context(board, row) for board, row in places],
            training=figures.training_figures(details.history, run.objective),
            epochs=len(details.history),
            seconds=details.summary.get("seconds"),
            weights=figures.weight_figure(run.sparsity) if run.sparsity else None,
            curves=own_curves(run),
            galleries=details.galleries,
            problems=[*run.problems, *problems],
            spec=json.dumps(run.spec.model_dump(mode="json"), indent=2, ensure_ascii=False),
            facts=run_facts(run),
        )

    def study(self, study: StudyView, runs: Mapping[str, RunView]) -> str:
        context = study_context(study, runs)
        return self._render("study.html", scripts=("sort.js",), root="../", **context)

    def compare(self) -> str:
        flags = embedded(self._site.groups)
        return self._render("compare.html", scripts=("compare.js",), root="", flags=flags)

    def _render(self, template: str, scripts: Sequence[str] = (), **context: Any) -> str:
        used = [self._scripts[name] for name in scripts]
        found = self._environment.get_template(template)
        return found.render(**self._shared, scripts=used, **context)


def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("buttress.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (duration, meaning, number_of, percent, pretty_threat, tenths)
    made.filters.update({f.__name__: f for f in filters})
    made.filters["svg"] = Markup  # charts escape what they are given
    return made


def asset(name: str) -> Markup:
    """Our own style or script, put into the page as it is."""
    folder = resources.files("buttress.report") / "templates"
    return Markup((folder / name).read_text(encoding="utf-8"))


def script(name: str) -> Script:
    text = asset(name)
    return Script(text, base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


def choices(boards: Sequence[Board]) -> dict[str, Any]:
    """What the leaderboards can be filtered by."""
    rows = [row.run for board in boards for row in board.rows]
    values = {
        "category": {r.category for r in rows},
        "training": {r.objective for r in rows},
        "dataset": {b.dataset for b in boards},
        "suite": {b.suite for b in boards},
    }
    return {"rows": len(rows), **{k: sorted(v - {""}) for k, v in values.items()}}


def finetuned_from(run: RunView) -> dict[str, str]:
    """Where the first weights of a run came from."""
    found = run.header.get("finetuned_from")
    if not isinstance(found, Mapping):
        return {}
    return {
        str(k): v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
        for k, v in found.items()
        if v not in (None, "", [], {})
    }


def board_context(board: Board, index: int, boards: Sequence[Board]) -> dict[str, Any]:
    drawn = figures.cast(board)
    # A run's curves do not depend on the suite: they are drawn once per data set.
    first = next(b for b in boards if b.dataset == board.dataset) is board
    curves = figures.curve_figures(drawn) if first else []
    scatter = figures.sparsity_figure(board, drawn)
    return {
        "board": board,
        "index": index,
        "notes": dict(enumerate(board.notes, 1)),
        "headline": headline(board),
        "champions": champions(board),
        "remaining": remaining(board),
        "groups": groups(board),
        "panels": figures.attack_figures(board, drawn),
        "drawn": len(drawn.rows),
        "left_out": drawn.left_out,
        "figures": [*curves, *([scatter] if scatter else [])],
        "method": method(board),
    }


def place_context(board: Board, row: Row) -> dict[str, Any]:
    relations = [relation(c.definition.threat, row.run.trained_on) for c in board.columns]
    used = sorted({*row.worst.notes, *(n for c in row.cells for n in c.notes)})
    return {
        "board": board,
        "row": row,
        "results": list(zip(board.columns, row.cells, row.results, relations, strict=True)),
        "notes": {n: board.notes[n - 1] for n in used},
        "bars": figures.row_figure(board, row),
        "classes": figures.class_figure(row.suite.classes) if row.worst.share else None,
    }


def own_curves(run: RunView) -> list[figures.Figure]:
    return [figures.curve_figure([(run, c)], {run.model: 0}) for c in run.curves]


def evaluated(run: RunView) -> bool:
    return any(suite.results for suite in run.suites)


def run_facts(run: RunView) -> Mapping[str, str]:
    """Where a run comes from."""
    header = run.header
    versions = header.get("versions")
    found = {
        "folder": run.place,
        "key": str(header.get("key", "")),
        "command": str(header.get("command", "")),
        "started": str(header.get("time", "")),
        "data": run.spec.dataset,
        "recipe": run.spec.recipe.name,
        "seed": str(run.spec.seed),
        "machine": str(header.get("platform", "")),
        "Python": str(header.get("python", "")),
        **({str(k): str(v) for k, v in versions.items()} if isinstance(versions, Mapping) else {}),
    }
    return {k: v for k, v in found.items() if v}
