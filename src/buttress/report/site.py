"""A report as a site for a static host: pages, all numbers as JSON, a feed of new runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape, quoteattr

from buttress import __version__
from buttress.errors import UserError
from buttress.report.collect import RunPage
from buttress.report.formatting import format_interval, format_tenths
from buttress.report.study_page import StudyPageData
from buttress.report.write import SILENT, read_report_content, write_pages
from buttress.results.evaluation import Evaluation
from buttress.results.run import shorten_paths
from buttress.system.files import write_text
from buttress.system.progress import Progress

RESULTS_FILE, FEED_FILE = "results.json", "feed.xml"
SCHEMA = "buttress-results/1"
FEED_LENGTH = 50  # newest runs
# What a static Space of Hugging Face needs; GitHub Pages shows index.html all the same.
README = """---
title: {title}
colorFrom: blue
colorTo: gray
sdk: static
app_file: index.html
pinned: false
---

Robustness of image classifiers, measured with Buttress: `index.html` is the report, `results.json`
has all numbers, `feed.xml` the newest runs.
"""


def write_site(
    roots: Sequence[Path],
    out: Path,
    *,
    title: str = "Buttress report",
    url: str = "",
    references: Sequence[Path] = (),
    progress: Progress = SILENT,
) -> Path:
    """Write a report with what GitHub Pages or a static Hugging Face Space needs.

    Beside the pages: ``.nojekyll``, ``README.md`` (an existing one is kept), ``results.json`` with
    all numbers and ``feed.xml``, an Atom feed of the newest runs. The same records give the same
    files, byte for byte. ``url`` is where the site will be; the feed links there.

    Returns:
        The path of ``index.html``.
    """
    if url and urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"--url must be the http(s) address of the site, but got {url!r}")
    base = f"{url.rstrip('/')}/" if url else ""
    content = read_report_content(roots, references, (), progress)
    runs, studies = content.data.runs, content.studies
    index = write_pages(content, out, title, links=(RESULTS_FILE, FEED_FILE), progress=progress)
    results = _finite(results_content(title, runs, studies))
    write_text(out / RESULTS_FILE, json.dumps(results, indent=1, allow_nan=False) + "\n")
    write_text(out / FEED_FILE, atom_feed(title, runs, base))
    write_text(out / ".nojekyll", "")
    if not (out / "README.md").exists():
        write_text(out / "README.md", README.format(title=json.dumps(title)))
    return index


def _finite(value: Any) -> Any:
    """The same JSON value with null in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def results_content(
    title: str, runs: Sequence[RunPage], studies: Sequence[StudyPageData]
) -> dict[str, Any]:
    """All numbers of a report; the fields are documented in ``docs/report.md``."""
    return {
        "schema": SCHEMA,
        "buttress": __version__,
        "title": title,
        "runs": [run_content(run) for run in sorted(runs, key=lambda r: r.slug)],
        "studies": [
            {"page": f"studies/{s.slug}.html", **s.result.model_dump(mode="json")}
            for s in sorted(studies, key=lambda s: s.slug)
        ],
    }


def run_content(run: RunPage) -> dict[str, Any]:
    """Identity, training and evaluations of one run."""
    spec = run.spec
    return {
        "key": run.key,
        "page": f"models/{run.slug}.html",
        "model": run.model,
        "category": run.category,
        "dataset": shorten_paths(spec.dataset),
        "recipe": spec.recipe.name,
        "objective": run.objective,
        "training_threat": run.training_threat,
        "seed": spec.seed,
        "state": run.state,
        "started": str(run.header.get("time", "")),
        "warnings": list(run.warnings),
        "evaluations": [evaluation_content(e) for e in run.evaluations if e.records],
    }


def evaluation_content(evaluation: Evaluation) -> dict[str, Any]:
    """One suite on one run: every attack with its threat model, and the worst case."""
    fields = evaluation.to_dict()
    for name, numbers in fields["attacks"].items():
        definition = evaluation.records[name].definition
        numbers |= {k: getattr(definition, k) for k in ("attack", "threat", "args")}
    return {
        "dataset": shorten_paths(evaluation.dataset),
        "split": evaluation.split,
        "images_digest": evaluation.images_digest,
        **fields,
    }


def atom_feed(title: str, runs: Sequence[RunPage], base: str) -> str:
    """Atom feed (RFC 4287) of the newest runs; times are those of the records."""
    dated = sorted(((str(r.header.get("time", "")), r.slug, r) for r in runs), reverse=True)
    dated = [entry for entry in dated if entry[0]][:FEED_LENGTH]
    updated = dated[0][0] if dated else "1970-01-01T00:00:00+00:00"
    self_link = f"<link rel='self' href={quoteattr(base + FEED_FILE)}/>" if base else ""
    entries = "".join(_feed_entry(run, time, base) for time, _, run in dated)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">\n'
        f"<title>{escape(title)}</title>\n<id>{escape(base or 'urn:buttress:report')}</id>\n"
        f"<updated>{escape(updated)}</updated>\n"
        f"<author><name>Buttress {__version__}</name></author>\n"
        f"<link href={quoteattr(base + 'index.html')}/>\n{self_link}{entries}</feed>\n"
    )


def _feed_entry(run: RunPage, time: str, base: str) -> str:
    page = f"{base}models/{run.slug}.html"
    name = escape(f"{run.description} on {shorten_paths(run.spec.dataset)}")
    return (
        f"<entry>\n<title>{name}</title>\n<id>urn:buttress:run:{escape(run.slug)}</id>\n"
        f"<link href={quoteattr(page)}/>\n<updated>{escape(time)}</updated>\n"
        f"<summary>{escape(_summary(run))}</summary>\n</entry>\n"
    )


def _summary(run: RunPage) -> str:
    """Worst-case robust accuracy per suite, in percent."""
    sentences = [
        f"{e.suite}: {format_tenths(worst.accuracy)}% worst-case robust accuracy "
        f"({format_interval(*worst.interval)}, {worst.n} images)"
        + ("" if e.is_trustworthy else ", not trustworthy")
        for e in run.evaluations
        if e.records
        for worst in [e.estimate()]
    ]
    return "; ".join(sentences) or f"not evaluated; state: {run.state}"
