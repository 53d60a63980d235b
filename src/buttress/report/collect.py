"""Reads runs from disk into views. What cannot be read is named in the view and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from buttress.errors import ButtressError, CorruptFile, UserError
from buttress.files import read_json
from buttress.progress import Progress
from buttress.records.diagnosis import Diagnosis, load_diagnosis
from buttress.records.run import Run, find_runs
from buttress.report.analyses import Curve, Gallery, Sparsity, parse_analysis
from buttress.report.pictures import Picture, read_pictures
from buttress.report.suites import collect_suite
from buttress.report.views import BrokenRun, Collection, RunView, Said, SuiteView
from buttress.report.words import slug


@dataclass(frozen=True)
class Details:
    """What only a model's own page shows; read when that page is written."""

    history: tuple[dict[str, Any], ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    galleries: tuple[Gallery, ...] = ()
    pictures: tuple[Picture, ...] = ()


def collect(roots: Sequence[Path], progress: Progress) -> Collection:
    """All runs below the roots, each once."""
    found = find_all(roots)
    task = progress.task("reading records", len(found))
    runs: list[RunView] = []
    broken: list[BrokenRun] = []
    for run, place in found:
        try:
            runs.append(collect_run(run, place))
        except (ButtressError, KeyError, TypeError, ValueError, OSError) as error:
            broken.append(BrokenRun(place, short(error, run, place)))
        task.advance(note=place)
    task.close()
    return Collection(tuple(tell_apart(runs)), tuple(broken))


def find_all(roots: Sequence[Path]) -> list[tuple[Run, str]]:
    """Runs with the place they are shown at: their path from the root's own folder on."""
    found: dict[Path, tuple[Run, str]] = {}
    for root in map(Path, roots):
        if not root.exists():
            raise UserError(f"there is no folder {root} to report on; give a folder with runs")
        for run in find_runs(root):
            place = (Path(root.resolve().name) / run.path.relative_to(root)).as_posix()
            found.setdefault(run.path.resolve(), (run, place))
    return list(found.values())


def refuse_nothing(roots: Sequence[Path]) -> None:
    """There must be something to report on."""
    names = ", ".join(str(r) for r in roots) or "no folder"
    raise UserError(
        f"no runs found in {names}: a run is a folder with a run.json; "
        "`buttress train` makes one, `buttress quickstart` makes several"
    )


def collect_run(run: Run, place: str) -> RunView:
    header = run.header
    view = RunView(
        run=run,
        slug=slug(str(header.get("key", place))),
        place=place,
        spec=run.spec,
        header=header,
        state=run.state,
        message="" if run.failure is None else run.failure.message,
    )
    found = tuple(suites(run, place))
    trouble = tuple(reason for suite in found for reason in suite.unreadable.values())
    return with_analyses(replace(view, suites=found, problems=trouble))


def suites(run: Run, place: str) -> list[SuiteView]:
    found = (collect_suite(run.suite_folder(s), f"{place}/eval/{s}") for s in run.suites())
    return [suite for suite in found if suite is not None]


def with_analyses(view: RunView) -> RunView:
    sparsity: Sparsity | None = None
    curves: list[Curve] = []
    galleries: list[str] = []
    others: list[str] = []
    said: list[Said] = []
    problems: list[str] = []
    diagnosis = load_diagnosis(view.run.path / "doctor.json")
    for name in view.run.analyses():
        try:
            content = read_json(view.run.analysis_file(name))
            if reason := content.get("does_not_apply"):
                said.append(Said(name, reason=str(reason)))
                continue
            found = parse_analysis(content)
        except (ValueError, OSError, CorruptFile) as error:
            reason = short(error, view.run, view.place)
            file = f"{view.place}/analysis/{name}.json"
            problems.append(f"{file} is unreadable, make it again ({reason})")
            continue
        if found is not None and content.get("says"):
            said.append(Said(name, str(content["says"])))
        if isinstance(found, Sparsity):
            sparsity = found
        elif isinstance(found, Curve):
            curves.append(found)
        elif isinstance(found, Diagnosis):
            diagnosis = found
        else:
            (galleries if isinstance(found, Gallery) else others).append(name)
    return replace(
        view,
        sparsity=sparsity,
        curves=tuple(curves),
        galleries=tuple(galleries),
        others=tuple(others),
        said=tuple(said),
        diagnosis=diagnosis,
        problems=(*view.problems, *problems),
    )


def collect_details(view: RunView) -> tuple[Details, tuple[str, ...]]:
    """Epochs, summary and pictures of one run, and the files that could not be read."""
    problems: list[str] = []
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    try:
        history = [e for e in view.run.history if isinstance(e, dict)]
        summary = view.run.summary if view.run.is_trained else {}
    except (CorruptFile, OSError, KeyError) as error:
        problems.append(f"{short(error, view.run, view.place)}: it is left out")
    contents = (read_json(view.run.analysis_file(name)) for name in view.galleries)
    galleries = [g for g in map(parse_analysis, contents) if isinstance(g, Gallery)]
    pictures = read_pictures(view.run.analysis_file(name) for name in view.others)
    return Details(tuple(history), summary, tuple(galleries), pictures), tuple(problems)


def tell_apart(runs: Sequence[RunView]) -> list[RunView]:
    """Gives runs with the same model and training a suffix, and every run its own page."""
    alike = Counter((r.model, r.objective, r.trained_on) for r in runs)
    seeded = Counter((r.model, r.objective, r.trained_on, r.spec.seed) for r in runs)
    used: Counter[str] = Counter()
    result = []
    for r in runs:
        suffix = ""
        if alike[r.model, r.objective, r.trained_on] > 1:
            alone = seeded[r.model, r.objective, r.trained_on, r.spec.seed] == 1
            suffix = f"seed {r.spec.seed}" if alone else f"({r.place.rsplit('/', 1)[-1]})"
        used[r.slug] += 1
        own = r.slug if used[r.slug] == 1 else f"{r.slug}-{used[r.slug]}"
        result.append(replace(r, slug=own, suffix=suffix))
    return result


def short(error: Exception, run: Run, place: str) -> str:
    """The text of an error with the run's path as the reader knows it."""
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return text.replace(str(run.path), place)
