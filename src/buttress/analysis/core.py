"""Registry of analyses: a function from trained models to a frozen result, and its figure.

A registration says: ``result``, the class of the result; ``plot``, what draws results of several
runs in one figure; ``cost``, what it will take, from the same arguments, all of them given;
``says``, a summary sentence of a result; ``table``, where there is one, the header and rows of its
numbers; ``together=True`` for an analysis of a group of runs; and ``standalone=True`` for one
without a run: its function takes ``progress`` instead.

``cost`` gives the passes for a subject; for a group, the passes of each model; and without a model,
a sentence.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from buttress.analysis.cost import format_cost
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject, RunGroup, load_subject
from buttress.config import Spec
from buttress.errors import CorruptFileError, OutdatedFileError, UserError
from buttress.models.loading.checkpoint import content_digest
from buttress.registry import Registry, RegistryEntry
from buttress.results.core import read_record_json, write_record_json
from buttress.results.run import Run, command_line, provenance
from buttress.system.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class AnalysisFunction(Protocol):
    """Compute a result from a subject, a group or nothing; keyword arguments are options."""

    def __call__(self, *args: Any, **kwargs: Any) -> Spec: ...


class PlotFunction(Protocol):
    """Plot the results of one or several runs into a figure."""

    def __call__(self, results: Mapping[str, Any], figure: Figure) -> None: ...


A = TypeVar("A", bound=AnalysisFunction)


class Analyses(Registry[AnalysisFunction]):
    """Registry of analyses that keeps each function's signature for type checkers."""

    if TYPE_CHECKING:

        def register(
            self,
            name: str,
            *,
            paper: str = "",
            tags: tuple[str, ...] = (),
            summary: str = "",
            **metadata: Any,
        ) -> Callable[[A], A]: ...


CostFunction = Callable[..., Any]  # passes, passes of several models, or a sentence
ANALYSES = Analyses("analysis")
PROVIDED_PARAMETERS = ("subject", "group", "progress")  # parameters that are not the user's


def list_analyses(tag: str | None = None) -> list[str]:
    return ANALYSES.names(tag)


def analyze(
    name: str,
    run: str | Path | Run,
    *,
    args: Mapping[str, Any] | None = None,
    subject: AnalysisSubject | None = None,
    progress: Progress | None = None,
) -> Spec:
    """Compute an analysis of a run and save it in the run; a saved result is reused.

    Args:
        name: a registered analysis; ``buttress list analyses`` shows all.
        run: the run or its directory.
        args: arguments of the analysis.
        subject: the loaded model and data, if at hand.
        progress: where to report the cost, and what is recomputed.

    Raises:
        DoesNotApply: the analysis has no meaning for this model.
    """
    run = run if isinstance(run, Run) else Run(run)
    progress, entry = progress or SilentProgress(), ANALYSES.entry(name)
    args = resolve_args(entry, args)
    if is_group_analysis(entry):
        raise UserError(f"analysis {entry.name!r} compares runs: use analyze_group")
    if is_standalone_analysis(entry):
        raise UserError(f"analysis {entry.name!r} needs no run; call analyze_standalone")
    subject = subject or load_subject(run, progress=progress)
    identity = {
        "analysis": entry.name,
        "args": args,
        "weights": content_digest(subject.model.state_dict()),
        "data": subject.data.fingerprint(),
        "threat": str(subject.threat),
    }
    path = run.analysis_file(entry.name)

    def describe_cost(cost: CostFunction) -> str:
        return format_cost([(subject, cost(subject, **args))])

    result = _load_or_compute(path, identity, entry, {"subject": subject}, describe_cost, progress)
    run.mend([path])
    return result


def analyze_group(
    name: str,
    runs: Sequence[str | Path | Run],
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Spec:
    """Compute an analysis of several runs and save it as ``out/<name>.json``."""
    progress, entry = progress or SilentProgress(), ANALYSES.entry(name)
    args = resolve_args(entry, args)
    if not is_group_analysis(entry):
        raise UserError(f"analysis {entry.name!r} takes one run; call analyze")
    group = RunGroup(tuple(r if isinstance(r, Run) else Run(r) for r in runs), limit, progress)
    group.require_one_dataset()
    keys = [[run.path.name, run.spec.key(), record_timestamps(run)] for run in group.runs]
    identity = {"analysis": entry.name, "args": args, "runs": keys, "limit": limit}

    def describe_cost(cost: CostFunction) -> str:
        return format_cost(cost(group, **args))

    return _load_or_compute(
        out / f"{entry.name}.json", identity, entry, {"group": group}, describe_cost, progress
    )


def analyze_standalone(
    name: str,
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Spec:
    """Compute an analysis that needs no run and save it as ``out/<name>.json``."""
    progress, entry = progress or SilentProgress(), ANALYSES.entry(name)
    args = resolve_args(entry, args)
    if not is_standalone_analysis(entry):
        raise UserError(f"analysis {entry.name!r} looks at runs: use analyze or analyze_group")
    identity = {"analysis": entry.name, "args": args}

    def describe_cost(cost: CostFunction) -> str:
        return str(cost(**args))

    path, inputs = out / f"{entry.name}.json", {"progress": progress}
    return _load_or_compute(path, identity, entry, inputs, describe_cost, progress)


def resolve_args(
    entry: RegistryEntry[AnalysisFunction], arguments: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the arguments of an analysis with its defaults, as saved in its file.

    A result is saved with all of them, so that one with other defaults is not reused.
    """
    parameters = inspect.signature(entry.value).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    resolved: dict[str, Any] = json.loads(json.dumps({**defaults, **(arguments or {})}))
    ANALYSES.check_args(entry.name, resolved, ignored=PROVIDED_PARAMETERS)
    return resolved


def is_group_analysis(entry: RegistryEntry[AnalysisFunction]) -> bool:
    """Whether an analysis compares several runs."""
    return bool(entry.metadata.get("together"))


def is_standalone_analysis(entry: RegistryEntry[AnalysisFunction]) -> bool:
    """Whether an analysis needs no run."""
    return bool(entry.metadata.get("standalone"))


def record_timestamps(run: Run) -> dict[str, float]:
    """The files an analysis of several runs may read, with the times they were written."""
    files = [*run.path.glob("eval/*/*.parquet"), *run.path.glob("analysis/*.json")]
    files += [run.path / "done.json", run.checkpoint("best")]
    return {
        p.relative_to(run.path).as_posix(): p.stat().st_mtime for p in sorted(files) if p.is_file()
    }


def _load_or_compute(
    path: Path,
    identity: Mapping[str, Any],
    entry: RegistryEntry[AnalysisFunction],
    inputs: Mapping[str, Any],
    describe_cost: Callable[[CostFunction], str],
    progress: Progress,
) -> Spec:
    """Return the saved result for these arguments; else report the cost and compute it."""
    saved = _load_saved(path, identity, entry, progress)
    if saved is not None:
        return saved
    if cost := entry.metadata.get("cost"):
        progress.log(f"{entry.name}: {describe_cost(cost)}")
    return _compute_and_save(
        path, identity, entry, lambda: ANALYSES.create(entry.name, {**inputs, **identity["args"]})
    )


def _load_saved(
    path: Path,
    identity: Mapping[str, Any],
    entry: RegistryEntry[AnalysisFunction],
    progress: Progress,
) -> Spec | None:
    """Return the result at ``path`` if it is intact and has the same arguments."""
    try:
        content = read_record_json(path)
        if {k: content.get(k) for k in identity} != dict(identity):
            return None
        if reason := content.get("does_not_apply"):
            raise AnalysisNotApplicable(str(reason))
        result_class: type[Spec] = entry.metadata["result"]
        return result_class.parse(content["result"], str(path))
    except FileNotFoundError:
        return None
    except (AnalysisNotApplicable, OutdatedFileError):
        raise
    except (CorruptFileError, UserError, KeyError) as error:
        progress.log(f"{error}; computing it again")
        return None


def _compute_and_save(
    path: Path,
    identity: Mapping[str, Any],
    entry: RegistryEntry[AnalysisFunction],
    compute: Callable[[], Spec],
) -> Spec:
    """Compute and save a result with its figure; "not applicable" is saved too."""
    from buttress.analysis.figures import save_figure

    provenance_fields = provenance(command_line())
    try:
        result = compute()
    except AnalysisNotApplicable as error:
        write_record_json(
            path, {**identity, "result": None, "does_not_apply": str(error), **provenance_fields}
        )
        raise
    says = entry.metadata.get("says")
    content = {**identity, "result": result.model_dump(mode="json"), **provenance_fields}
    write_record_json(path, {**content, "says": says(result) if says else ""})
    save_figure(entry.metadata["plot"], {"": result}, path.with_suffix(".svg"))
    return result


def require_integers(minimum: int, **arguments: object) -> None:
    """Raise `UserError` unless all values are integers of at least ``minimum``."""
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise UserError(
                f"`{name}` must be an integer of at least {minimum}, but got {name}={value!r}"
            )
