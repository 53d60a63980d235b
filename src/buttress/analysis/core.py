"""Analyses: a function from trained models, or none, to a frozen result; another draws it.

A registration says: ``result``, the class of the result; ``plot``, what draws results of several
runs in one figure; ``cost``, what it will take, from the same arguments, all of them given;
``says``, a sentence on what a result means; ``table``, where there is one, the header and rows of
its numbers; ``together=True`` for an analysis of a whole group of runs; and ``standalone=True`` for
one that looks at no run: its function takes ``progress`` in their place.

``cost`` gives the passes for a subject; for a group, which networks take how many; and where no
network is looked at, a sentence.
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
from buttress.errors import CorruptFileError, UserError
from buttress.models.loading.checkpoint import content_digest
from buttress.registry import Registry, RegistryEntry
from buttress.results.run import Run, command_line, provenance
from buttress.system.files import read_json, write_json
from buttress.system.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class AnalysisFunction(Protocol):
    """Computes a result from a subject, a group or nothing; keyword arguments are its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Spec: ...


class PlotFunction(Protocol):
    """Draws the results of one or several runs into a figure."""

    def __call__(self, results: Mapping[str, Any], figure: Figure) -> None: ...


A = TypeVar("A", bound=AnalysisFunction)


class Analyses(Registry[AnalysisFunction]):
    """The table of analyses: to type checkers each keeps its own parameters and result."""

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


CostFunction = Callable[..., Any]  # passes, passes of several networks, or a sentence
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
    """Computes an analysis of a run and saves it in the run; a saved one that fits is returned.

    Args:
        name: a registered analysis; ``buttress list analyses`` shows all.
        run: the run or its directory.
        args: arguments of the analysis.
        subject: the loaded model and data, if at hand.
        progress: where to say what it will cost, and what is done again.

    Raises:
        DoesNotApply: the analysis has no meaning for this model.
    """
    run = run if isinstance(run, Run) else Run(run)
    progress, entry = progress or SilentProgress(), ANALYSES.entry(name)
    args = resolve_args(entry, args)
    if is_group_analysis(entry):
        raise UserError(f"analysis {entry.name!r} compares runs: use analyze_group")
    if is_standalone_analysis(entry):
        raise UserError(f"analysis {entry.name!r} looks at no run: use analyse_alone")
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
    """Computes an analysis of several runs and saves it as ``out/<name>.json``."""
    progress, entry = progress or SilentProgress(), ANALYSES.entry(name)
    args = resolve_args(entry, args)
    if not is_group_analysis(entry):
        raise UserError(f"analysis {entry.name!r} looks at one run: use analyse")
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
    """Computes an analysis that needs no run and saves it as ``out/<name>.json``."""
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
    """The arguments of an analysis with its defaults, as a file keeps them.

    A result is saved under all of them, so that one made with another default is not used again.
    """
    parameters = inspect.signature(entry.value).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    resolved: dict[str, Any] = json.loads(json.dumps({**defaults, **(arguments or {})}))
    ANALYSES.check_args(entry.name, resolved, ignored=PROVIDED_PARAMETERS)
    return resolved


def is_group_analysis(entry: RegistryEntry[AnalysisFunction]) -> bool:
    """Whether an analysis looks at several runs at once."""
    return bool(entry.metadata.get("together"))


def is_standalone_analysis(entry: RegistryEntry[AnalysisFunction]) -> bool:
    """Whether an analysis looks at no run."""
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
    """The saved answer to this very question; else its cost is said, and it is computed."""
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
    """The result at ``path`` if it is whole and answers this very question."""
    try:
        content = read_json(path)
        if {k: content.get(k) for k in identity} != dict(identity):
            return None
        if reason := content.get("does_not_apply"):
            raise AnalysisNotApplicable(str(reason))
        result_class: type[Spec] = entry.metadata["result"]
        return result_class.parse(content["result"], str(path))
    except FileNotFoundError:
        return None
    except AnalysisNotApplicable:
        raise
    except (CorruptFileError, UserError, KeyError) as error:
        progress.log(f"{error}; doing it again")
        return None


def _compute_and_save(
    path: Path,
    identity: Mapping[str, Any],
    entry: RegistryEntry[AnalysisFunction],
    compute: Callable[[], Spec],
) -> Spec:
    """Computes and writes a result with its picture; that it does not apply is a result too."""
    from buttress.analysis.figures import save_figure

    provenance_fields = provenance(command_line())
    try:
        result = compute()
    except AnalysisNotApplicable as error:
        write_json(
            path, {**identity, "result": None, "does_not_apply": str(error), **provenance_fields}
        )
        raise
    says = entry.metadata.get("says")
    content = {**identity, "result": result.model_dump(mode="json"), **provenance_fields}
    write_json(path, {**content, "says": says(result) if says else ""})
    save_figure(entry.metadata["plot"], {"": result}, path.with_suffix(".svg"))
    return result


def require_integers(minimum: int, **arguments: object) -> None:
    """Refuses what is not a whole number of at least ``minimum``."""
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise UserError(
                f"`{name}` must be a whole number of at least {minimum}, but got {name}={value!r}"
            )
