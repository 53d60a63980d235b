"""Render the pages of a report from its templates. All text is escaped by Jinja."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from buttress import __version__
from buttress.report import figures
from buttress.report.collect import ReportData, RunDetails, RunPage
from buttress.report.formatting import (
    explain_threat,
    format_duration,
    format_percent,
    format_tenths,
    format_threat,
    pluralize,
)
from buttress.report.headline import best_models, build_headline, unranked_sentence
from buttress.report.heat_map import build_heat_map, threat_rows
from buttress.report.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    relation_to_training,
    seed_groups,
)
from buttress.report.method import describe_method, format_memory
from buttress.report.published_rows import build_published_rows, unused_entry_messages
from buttress.report.study_page import RunLink, StudyPageData, study_context
from buttress.results.robustbench import LeaderboardEntries
from buttress.results.run import shorten_paths

MAX_MODELS = 200  # models of one board on the page of comparisons
MAX_FLAG_CHARS = 1_500_000  # of the bits of all models on it
PAGE_ROWS = 100  # rows of a table that are shown together; more are packed


def comparison_groups(boards: Sequence[Leaderboard]) -> list[dict[str, Any]]:
    """Models that can be compared, by leaderboard; the most robust ones if too many."""
    comparable = [b for b in boards if sum(bool(r.suite.results) for r in b.rows) > 1]
    return [comparison_group(b, MAX_FLAG_CHARS // len(comparable)) for b in comparable]


def comparison_group(board: Leaderboard, max_chars: int) -> dict[str, Any]:
    parts = [board.dataset, board.split, f"suite {board.suite}", f"{board.images} images"]
    chars_per_row = (len(board.columns) + 1) * board.images // 6 + 1
    num_rows = min(MAX_MODELS, max(2, max_chars // chars_per_row))
    return {
        "title": ", ".join(p for p in parts if p),
        "images": board.images,
        "columns": ["worst-case robust accuracy", *(c.title for c in board.columns)],
        "rows": [comparison_row(r) for r in board.rows[:num_rows]],
        "left_out": max(0, len(board.rows) - num_rows),
    }


def comparison_row(leaderboard_row: LeaderboardRow) -> dict[str, Any]:
    run = leaderboard_row.run
    training = f"{run.objective} {format_threat(run.training_threat)}".strip()
    trust_suffix = " (not trustworthy)" if leaderboard_row.worst_case.is_untrustworthy else ""
    is_robust = leaderboard_row.suite.is_robust if leaderboard_row.worst_case.estimate else None
    columns = [is_robust, *(None if r is None else r.correct for r in leaderboard_row.results)]
    return {
        "name": f"{run.label} · {training}{trust_suffix}",
        "page": f"models/{run.slug}.html",
        "slug": run.slug,
        "flags": ["" if c is None else pack_bits(c) for c in columns],
    }


def pack_html(html: str) -> Markup:
    """Rows of a table for ``tables.js``: compressed with zlib, as base64."""
    return Markup(base64.b64encode(zlib.compress(html.encode(), 9)).decode())


def pack_bits(flags: NDArray[np.bool_]) -> str:
    """One bit per image, as base64."""
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def embed_json(content: Any) -> Markup:
    """JSON for a script element, escaped so that it cannot end the element."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return Markup("".join(escapes.get(c, c) for c in text))


NO_ENTRIES = LeaderboardEntries((), ())


@dataclass(frozen=True)
class PageScript:
    """A script and its hash for the content security policy."""

    text: Markup
    hash: str


@dataclass(frozen=True)
class SiteIndex:
    """Links between the pages."""

    studies: Sequence[StudyPageData] = ()
    comparison_groups: Sequence[Mapping[str, Any]] = ()  # models that can be compared
    slugs: Mapping[str, str] = field(default_factory=dict)  # page by the key of the run
    files: Sequence[str] = ()  # beside the first page, for other programs

    @property
    def comparable(self) -> frozenset[str]:
        return frozenset(row["slug"] for group in self.comparison_groups for row in group["rows"])


class PageRenderer:
    """Renders the pages of a report."""

    def __init__(self, title: str, subtitle: str, site: SiteIndex | None = None) -> None:
        self._environment = environment()
        self._site = site or SiteIndex()
        self._comparable = self._site.comparable
        names = ("tables.js", "filter.js", "compare.js")
        self._scripts = {name: load_script(name) for name in names}
        self._shared = {
            "report_title": title,
            "subtitle": subtitle,
            "version": __version__,
            "style": read_asset("style.css"),
            "page_rows": PAGE_ROWS,
        }

    def index(
        self,
        data: ReportData,
        boards: Sequence[Leaderboard],
        published: LeaderboardEntries = NO_ENTRIES,
        problems: Sequence[str] = (),
    ) -> str:
        contexts = [leaderboard_context(b, i, boards) for i, b in enumerate(boards, 1)]
        for context in contexts:
            context["references"] = build_published_rows(context["board"], published.entries)
        return self._render(
            "index.html",
            scripts=("tables.js", "filter.js"),
            root="",
            boards=contexts,
            studies=self._site.studies,
            can_compare=bool(self._site.comparison_groups),
            choices=filter_choices(boards),
            leftovers=list_leftovers(data),
            problems=[
                *problems,
                *(p for r in data.runs for p in r.problems),
                *unused_entry_messages(published, boards),
            ],
            count=len(data.runs),
            files=self._site.files,
        )

    def model(
        self,
        run: RunPage,
        leaderboard_rows: Sequence[tuple[Leaderboard, LeaderboardRow]],
        details: RunDetails,
        problems: Sequence[str] = (),
    ) -> str:
        origin = finetune_origin(run)
        return self._render(
            "model.html",
            root="../",
            run=run,
            can_compare=run.slug in self._comparable,
            pictures=details.pictures,
            origin=origin,
            origin_run=RunLink(
                origin.get("source", ""), self._site.slugs.get(origin.get("key", ""), "")
            ),
            places=[run_leaderboard_context(board, row) for board, row in leaderboard_rows],
            training=figures.training_figures(details.history, run.objective),
            epochs=len(details.history),
            seconds=details.summary.get("seconds"),
            peak_memory=format_memory([details.summary.get("peak_memory_mb")]),
            weights=figures.weight_figure(run.sparsity) if run.sparsity else None,
            curves=[figures.curve_figure([(run, c)], {run.model: 0}) for c in run.curves],
            galleries=details.galleries,
            problems=[*run.problems, *problems],
            spec=json.dumps(spec_fields(run), indent=2, ensure_ascii=False),
            code=details.code,
            facts=run_facts(run),
        )

    def study(self, study: StudyPageData, runs: Mapping[str, RunPage]) -> str:
        context = study_context(study, runs)
        return self._render("study.html", scripts=("tables.js",), root="../", **context)

    def compare(self) -> str:
        flags = embed_json(self._site.comparison_groups)
        return self._render("compare.html", scripts=("compare.js",), root="", flags=flags)

    def _render(self, template: str, scripts: Sequence[str] = (), **context: Any) -> str:
        used = [self._scripts[name] for name in scripts]
        page_template = self._environment.get_template(template)
        return page_template.render(**self._shared, scripts=used, **context)


def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("buttress.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        format_duration,
        explain_threat,
        pluralize,
        format_percent,
        format_threat,
        format_tenths,
        shorten_paths,
    )
    env.filters.update({f.__name__: f for f in filters})
    env.filters["pack"] = pack_html
    env.filters["svg"] = Markup  # charts escape what they are given
    return env


def read_asset(name: str) -> Markup:
    """Read a bundled style or script."""
    folder = resources.files("buttress.report") / "templates"
    return Markup((folder / name).read_text(encoding="utf-8"))


def load_script(name: str) -> PageScript:
    text = read_asset(name)
    return PageScript(text, base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


def filter_choices(boards: Sequence[Leaderboard]) -> dict[str, Any]:
    """Options of the leaderboard filters."""
    rows = [row.run for board in boards for row in board.rows]
    values = {
        "category": {r.category for r in rows},
        "training": {r.objective for r in rows},
        "dataset": {b.dataset for b in boards},
        "suite": {b.suite for b in boards},
    }
    return {"rows": len(rows), **{k: sorted(v - {""}) for k, v in values.items()}}


def finetune_origin(run: RunPage) -> dict[str, str]:
    """Source of the initial weights of a fine-tuned run."""
    origin = run.header.get("finetuned_from")
    if not isinstance(origin, Mapping):
        return {}
    return {
        str(k): v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
        for k, v in origin.items()
        if v not in (None, "", [], {})
    }


def leaderboard_context(
    board: Leaderboard, index: int, boards: Sequence[Leaderboard]
) -> dict[str, Any]:
    drawn_rows = figures.select_drawn_rows(board)
    # A run's curves do not depend on the suite: they are drawn once per dataset.
    first = next(b for b in boards if b.dataset == board.dataset) is board
    curves = figures.curve_figures(drawn_rows) if first else []
    scatter = figures.sparsity_figure(board, drawn_rows)
    return {
        "board": board,
        "index": index,
        "notes": dict(enumerate(board.notes, 1)),
        "headline": build_headline(board),
        "champions": best_models(board),
        "remaining": unranked_sentence(board),
        "groups": seed_groups(board),
        "panels": figures.attack_figures(board, drawn_rows),
        "drawn": len(drawn_rows.rows),
        "left_out": drawn_rows.num_omitted,
        "figures": [*curves, *([scatter] if scatter else [])],
        "heat_map": build_heat_map(board),
        "method": describe_method(board),
    }


def run_leaderboard_context(board: Leaderboard, row: LeaderboardRow) -> dict[str, Any]:
    relations = [
        relation_to_training(c.definition.threat, row.run.training_threats) for c in board.columns
    ]
    note_numbers = sorted({*row.worst_case.notes, *(n for c in row.cells for n in c.notes)})
    return {
        "board": board,
        "row": row,
        "results": list(zip(board.columns, row.cells, row.results, relations, strict=True)),
        "notes": {n: board.notes[n - 1] for n in note_numbers},
        "threats": threat_rows(row),
        "uar": list(row.suite.uar.values()),
        "bars": figures.model_figure(board, row),
        "classes": figures.class_figure(row.suite.per_class()) if row.worst_case.estimate else None,
    }


class Leftover(NamedTuple):
    """A run that is not in a leaderboard, and what to do about it."""

    display_path: str
    state: str
    details: str
    slug: str = ""
    label: str = ""
    css: str = ""
    command: str = ""


def list_leftovers(data: ReportData) -> list[Leftover]:
    """Runs that are not finished, not evaluated or not readable."""
    not_finished = "training is not finished; run the same command again to resume"
    unfinished = [
        Leftover(r.display_path, r.state, r.failure_message or not_finished, r.slug, r.label,
                 r.state)
        for r in data.runs if r.state != "done"
    ]  # fmt: skip
    unevaluated = [
        Leftover(r.display_path, "not evaluated", "trained, but not evaluated: run", r.slug,
                 r.label, "", f"buttress evaluate {r.display_path}")
        for r in data.runs if r.state == "done" and not is_evaluated(r)
    ]  # fmt: skip
    broken = [Leftover(r.display_path, "unreadable", r.reason, css="failed")
              for r in data.unreadable]  # fmt: skip
    return [*unfinished, *unevaluated, *broken]


def is_evaluated(run: RunPage) -> bool:
    return any(evaluation.results for evaluation in run.evaluations)


def spec_fields(run: RunPage) -> dict[str, Any]:
    """Specification of a run; the file of a user's model is named as it lies in the run."""
    return {**run.spec.model_dump(mode="json"), "model": run.header["spec"]["model"]}


def run_facts(run: RunPage) -> Mapping[str, str]:
    """Provenance of a run."""
    header = run.header
    versions = header.get("versions")
    facts = {
        "folder": run.display_path,
        "key": str(header.get("key", "")),
        "command": shorten_paths(str(header.get("command", ""))),
        "started": str(header.get("time", "")),
        "data": shorten_paths(run.spec.dataset),
        "recipe": run.spec.recipe.name,
        "seed": str(run.spec.seed),
        "machine": str(header.get("platform", "")),
        "Python": str(header.get("python", "")),
        **({str(k): str(v) for k, v in versions.items()} if isinstance(versions, Mapping) else {}),
    }
    return {k: v for k, v in facts.items() if v}
