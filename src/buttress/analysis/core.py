"""Registry of analyses: a function from trained models to a frozen result that can draw itself.

``ANALYSES.register`` takes all that is asked about an analysis: what its docs, its tests, ``plan``
and ``predict`` need is in its `AnalysisSpec`, and its sentence, figure and table are methods of its
result. So a new analysis is one file and one import line.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_type_hints,
)

from annotated_types import Ge, Gt
from pydantic import Field

from buttress.analysis.cost import format_cost
from buttress.analysis.figures import Figure, save_figure
from buttress.analysis.subject import (
    AnalysisNotApplicable,
    AnalysisSubject,
    NamedModel,
    RunGroup,
    load_member,
    load_subject,
    run_labels,
)
from buttress.analysis.uncertainty import StoredSamples, UncertaintyNote
from buttress.config import Spec
from buttress.errors import CorruptFileError, OutdatedFileError, UserError
from buttress.models.loading.checkpoint import content_digest
from buttress.registry import Registry, RegistryEntry
from buttress.results.core import read_record_json, write_record_json
from buttress.results.run import Run, command_line, provenance
from buttress.system.progress import Progress, SilentProgress, track

Table = tuple[list[str], list[list[str]]]  # header and rows
# Arguments with limits, which `Registry.check_args` checks.
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]


class AnalysisResult(Spec):
    """Base of the results of analyses."""

    samples: dict[str, StoredSamples] = Field(default_factory=dict, repr=False)  # by path of figure

    def summary(self) -> str:
        """Summarize the result in a sentence."""
        raise NotImplementedError

    @staticmethod
    def plot(results: Mapping[str, Any], figure: Figure) -> None:
        """Plot the results of one or several runs, by their labels, into a figure."""
        raise NotImplementedError

    def table(self) -> Table | None:
        """The numbers as a table, where a sentence is too short for them."""
        return None


class AnalysisFunction(Protocol):
    """Compute a result from a subject, a group or nothing; keyword arguments are options."""

    def __call__(self, *args: Any, **kwargs: Any) -> AnalysisResult: ...


@dataclass(frozen=True)
class Predictor:
    """A metric in the result of an analysis that may predict robust accuracy."""

    name: str
    key_path: tuple[str | int, ...]
    uses_attack: bool = False  # needs an attack itself, so that it is close to what it predicts
    also_initial: bool = False  # the same of the initial weights is a metric too
    is_initial: bool = False
    analysis: str = ""  # the name it is registered under


SubjectKind = Literal["run", "group", "none"]
CostFunction = Callable[..., Any]  # passes; passes of several models; or a sentence


@dataclass(frozen=True)
class AnalysisSpec:
    """What the registration of an analysis carries beside its function.

    Attributes:
        result: the class of its result.
        cost: its passes, from a `CostScope` and all arguments; of an analysis of a group, the
            subject and passes of each model; of one without a run, a sentence.
        subject: whether it takes a run, a group of runs (``group``) or nothing (``progress``).
        predictors: metrics of its result for ``predict``.
        example_args: arguments that make it short, for tests and examples.
        uncertainty: why figures have no samples, by pattern of their path; the first one counts.
        reads_records: whether it compares what is stored in runs, so that it takes runs only.
    """

    result: type[AnalysisResult]
    cost: CostFunction
    subject: SubjectKind = "run"
    predictors: tuple[Predictor, ...] = ()
    example_args: Mapping[str, Any] = field(default_factory=dict)
    uncertainty: tuple[UncertaintyNote, ...] = ()
    reads_records: bool = False


A = TypeVar("A", bound=AnalysisFunction)


class Analyses(Registry[AnalysisFunction]):
    """Registry of analyses; the class of the result is what the function returns."""

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

    def spec(self, name: str) -> AnalysisSpec:
        entry = self.entry(name)
        result = get_type_hints(entry.value)["return"]
        return AnalysisSpec(result, **entry.metadata)

    def predictors(self) -> Iterator[Predictor]:
        """The metrics of all analyses, trained and initial."""
        for entry in self:
            for metric in self.spec(entry.name).predictors:
                yield replace(metric, analysis=entry.name)
                if metric.also_initial:
                    name = f"{metric.name}, initial"
                    yield replace(metric, name=name, analysis=entry.name, is_initial=True)


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
) -> AnalysisResult:
    """Compute an analysis of a run and save it in the run; a saved result is reused.

    Args:
        name: a registered analysis; ``buttress list analyses`` shows all.
        run: the run or its directory.
        args: arguments of the analysis.
        subject: the loaded model and data, if at hand.
        progress: where to report the cost, and what is recomputed.

    Raises:
        AnalysisNotApplicable: the analysis has no meaning for this model.
    """
    if not isinstance(run, (str, Path, Run)):
        raise UserError(
            f"the second argument must be a run or its folder, but got {type(run).__name__}; "
            "analyze_model(name, subject, out) of buttress.analysis takes models"
        )
    run = run if isinstance(run, Run) else Run(run)
    job = _create_job(name, "run", args, progress)
    subject = subject or load_subject(run, progress=job.progress)
    path = run.analysis_file(job.entry.name)
    result = job.load_or_compute_subject(path, subject)
    run.mend([path])
    return result


def analyze_model(
    name: str,
    subject: AnalysisSubject,
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> AnalysisResult:
    """Compute an analysis of a model that is not a run and save it as ``out/<name>.json``."""
    job = _create_job(name, "run", args, progress)
    return job.load_or_compute_subject(out / f"{job.entry.name}.json", subject)


def analyze_group(
    name: str,
    runs: Sequence[str | Path | Run | NamedModel],
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    labels: Sequence[str] = (),
    progress: Progress | None = None,
) -> AnalysisResult:
    """Compute an analysis of several runs and models and save it as ``out/<name>.json``.

    Runs are named by ``labels``; without them, by model and recipe.
    """
    job = _create_job(name, "group", args, progress)
    members = tuple(r if isinstance(r, Run | NamedModel) else Run(r) for r in runs)
    group = RunGroup(members, limit, job.progress, tuple(labels))
    group.require_one_dataset()
    models = [member for member in members if isinstance(member, NamedModel)]
    if models and job.spec.reads_records:
        raise UserError(
            f"analysis {name!r} compares what is stored in runs, but {models[0].label} is not a run"
        )
    keys: list[Any] = [
        [run.path.name, run.spec.key(), record_timestamps(run)] for run in group.runs
    ]
    keys += [[model.key, subject_identity(model.load_subject())] for model in models]
    return job.load_or_compute(
        out / f"{job.entry.name}.json",
        {"runs": keys, "limit": limit, "labels": list(group.labels)},
        {"group": group},
        lambda cost: format_cost(cost(group, **job.args)),
    )


def analyze_standalone(
    name: str, out: Path, *, args: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> AnalysisResult:
    """Compute an analysis that needs no run and save it as ``out/<name>.json``."""
    job = _create_job(name, "none", args, progress)
    return job.load_or_compute(
        out / f"{job.entry.name}.json",
        {},
        {"progress": job.progress},
        lambda cost: str(cost(**job.args)),
    )


HOW_TO_CALL = {
    "run": "takes one run; call analyze",
    "group": "compares runs; call analyze_group",
    "none": "needs no run; call analyze_standalone",
}


class AnalysisResults(NamedTuple):
    """Results of an analysis by label, and the reasons of runs that it does not apply to."""

    results: dict[str, AnalysisResult]
    reasons: dict[str, str]


def analyze_runs(
    name: str,
    runs: Sequence[Run | NamedModel],
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> AnalysisResults:
    """Compute an analysis of each run or model, of all as a group, or of none, by its kind."""
    progress, kind = progress or SilentProgress(), ANALYSES.spec(name).subject
    outcome = AnalysisResults({}, {})
    if kind == "none":
        outcome.results[""] = analyze_standalone(name, out, args=args, progress=progress)
        return outcome
    if kind == "group":
        result = analyze_group(name, runs, out, args=args, limit=limit, progress=progress)
        outcome.results[f"{len(runs)} runs"] = result
        return outcome
    labeled_runs = list(zip(runs, run_labels(runs), strict=True))
    for run, label in track(progress, f"analyze {name}", labeled_runs, lambda pair: pair[1]):
        try:
            subject = load_member(run, limit=limit, progress=progress)
            if isinstance(run, NamedModel):
                result = analyze_model(name, subject, out / run.key, args=args, progress=progress)
            else:
                result = analyze(name, run, args=args, subject=subject, progress=progress)
            outcome.results[label] = result
        except AnalysisNotApplicable as error:
            outcome.reasons[label] = str(error)
    return outcome


def subject_identity(subject: AnalysisSubject) -> dict[str, str]:
    """What a saved result must agree with: the weights, the images and the threat model."""
    return {
        "weights": content_digest(subject.model.state_dict()),
        "data": subject.data.fingerprint(),
        "threat": str(subject.threat),
    }


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


def record_timestamps(run: Run) -> dict[str, float]:
    """The files an analysis of several runs may read, with the times they were written."""
    files = [*run.path.glob("eval/*/*.parquet"), *run.path.glob("analysis/*.json")]
    files += [run.path / "done.json", run.checkpoint("best")]
    return {
        p.relative_to(run.path).as_posix(): p.stat().st_mtime for p in sorted(files) if p.is_file()
    }


@dataclass(frozen=True)
class AnalysisJob:
    """One analysis with its arguments, to be read from its file or computed."""

    entry: RegistryEntry[AnalysisFunction]
    spec: AnalysisSpec
    args: dict[str, Any]
    progress: Progress

    def load_or_compute_subject(self, path: Path, subject: AnalysisSubject) -> AnalysisResult:
        """`load_or_compute` of one model."""
        return self.load_or_compute(
            path,
            subject_identity(subject),
            {"subject": subject},
            lambda cost: format_cost([(subject, cost(subject.scope, **self.args))]),
        )

    def load_or_compute(
        self,
        path: Path,
        identity: Mapping[str, Any],
        inputs: Mapping[str, Any],
        describe_cost: Callable[[CostFunction], str],
    ) -> AnalysisResult:
        """Return the saved result if its identity is the same; else report the cost, compute."""
        identity = {"analysis": self.entry.name, "args": self.args, **identity}
        saved = self._load_saved(path, identity)
        if saved is not None:
            return saved
        self.progress.log(f"{self.entry.name}: {describe_cost(self.spec.cost)}")
        content = {**identity, **provenance(command_line())}
        try:
            result: AnalysisResult = ANALYSES.create(self.entry.name, {**inputs, **self.args})
        except AnalysisNotApplicable as error:
            write_record_json(path, {**content, "result": None, "does_not_apply": str(error)})
            raise
        content["result"] = result.model_dump(mode="json")
        content["uncertainty"] = [n.model_dump(mode="json") for n in self.spec.uncertainty]
        write_record_json(path, {**content, "summary": result.summary()})
        save_figure(self.spec.result.plot, {"": result}, path.with_suffix(".svg"))
        return result

    def _load_saved(self, path: Path, identity: Mapping[str, Any]) -> AnalysisResult | None:
        """Return the result at ``path`` if it is intact and has the same identity."""
        try:
            content = read_record_json(path)
            if {k: content.get(k) for k in identity} != dict(identity):
                return None
            if reason := content.get("does_not_apply"):
                raise AnalysisNotApplicable(str(reason))
            return self.spec.result.parse(content["result"], str(path))
        except FileNotFoundError:
            return None
        except (AnalysisNotApplicable, OutdatedFileError):
            raise
        except (CorruptFileError, UserError, KeyError) as error:
            self.progress.log(f"{error}; computing it again")
            return None


def _create_job(
    name: str, subject: SubjectKind, args: Mapping[str, Any] | None, progress: Progress | None
) -> AnalysisJob:
    entry, spec = ANALYSES.entry(name), ANALYSES.spec(name)
    if spec.subject != subject:
        raise UserError(f"analysis {entry.name!r} {HOW_TO_CALL[spec.subject]}")
    return AnalysisJob(entry, spec, resolve_args(entry, args), progress or SilentProgress())
