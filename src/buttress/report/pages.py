"""Views -> HTML through the templates beside this file. All text is escaped by Jinja."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from buttress import __version__
from buttress.records.robustbench import Reading
from buttress.report import figures
from buttress.report.board import Board, Row, relation
from buttress.report.collect import Details
from buttress.report.headline import champions, headline, remaining
from buttress.report.method import method
from buttress.report.references import references, unused
from buttress.report.seeds import groups
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


class Pages:
    """Renders pages; one object serves a whole report."""

    def __init__(self, title: str, subtitle: str) -> None:
        self._environment = environment()
        self._shared = {
            "report_title": title,
            "subtitle": subtitle,
            "version": __version__,
            "style": asset("style.css"),
            "script": asset("sort.js"),
            "script_hash": sha256(asset("sort.js")),
        }

    def index(
        self, found: Collection, boards: Sequence[Board], published: Reading = NOTHING
    ) -> str:
        contexts = [board_context(b, i, boards) for i, b in enumerate(boards, 1)]
        for context in contexts:
            context["references"] = references(context["board"], published.rows)
        return self._render(
            "index.html",
            root="",
            boards=contexts,
            unfinished=[r for r in found.runs if r.state != "done"],
            unevaluated=[r for r in found.runs if r.state == "done" and not evaluated(r)],
            broken=found.broken,
            problems=[*(p for r in found.runs for p in r.problems), *unused(published, boards)],
            count=len(found.runs),
        )

    def model(
        self,
        run: RunView,
        places: Sequence[tuple[Board, Row]],
        details: Details,
        problems: Sequence[str] = (),
    ) -> str:
        return self._render(
            "model.html",
            root="../",
            run=run,
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

    def _render(self, template: str, **context: Any) -> str:
        return self._environment.get_template(template).render(**self._shared, **context)


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


def sha256(script: str) -> str:
    """For the content security policy: this script may run and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


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
