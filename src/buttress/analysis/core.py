"""Analyses: a function from a trained model to a frozen result, and one that draws it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from buttress.data import Dataset, load_dataset
from buttress.errors import CorruptFile, UserError
from buttress.files import read_json, write_json
from buttress.models import load_model
from buttress.models.checkpoint import tree_digest
from buttress.progress import Progress, Silent
from buttress.records.run import Run, command_line, provenance
from buttress.records.spec import RunSpec
from buttress.registry import Registry
from buttress.spec import Spec
from buttress.threat import Threat

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Subject:
    """What an analysis looks at."""

    model: nn.Module
    data: Dataset
    threat: Threat  # the one it was trained on, or the usual one of its data
    seed: int = 0


class Analysis(Protocol):
    """Computes a result from a subject; further keyword arguments are its own."""

    def __call__(self, subject: Subject) -> Spec: ...


class Plot(Protocol):
    """Draws the results of one or several runs into a figure."""

    def __call__(self, results: Mapping[str, Any], figure: Figure) -> None: ...


ANALYSES: Registry[Analysis] = Registry("analysis")


def list_analyses(tag: str | None = None) -> list[str]:
    return ANALYSES.names(tag)


def subject_of(run: Run, *, limit: int | None = None) -> Subject:
    """The best model of a run, on its test images."""
    spec = run.spec
    data = load_dataset(spec.dataset, "test", limit=limit)
    return Subject(load_model(run.path), data, threat_of(spec, data), spec.seed)


def threat_of(spec: RunSpec, data: Dataset) -> Threat:
    """What a run was trained against; for standard training the usual Linf ball of its data."""
    trained = spec.recipe.threat
    return Threat.parse(trained) if trained else Threat("Linf", data.budgets["Linf"])


def analyse(
    name: str,
    run: str | Run,
    *,
    args: Mapping[str, Any] | None = None,
    subject: Subject | None = None,
    progress: Progress | None = None,
) -> Spec:
    """Computes an analysis of a run and saves it in the run; a saved one that fits is returned.

    Args:
        name: a registered analysis; ``buttress list analyses`` shows all.
        run: the run or its directory.
        args: arguments of the analysis.
        subject: the loaded model and data, if at hand.
        progress: where to say what is done again.
    """
    run = Run(run) if isinstance(run, str) else run
    progress, args = progress or Silent(), dict(args or {})
    entry = ANALYSES.entry(name)
    subject = subject or subject_of(run)
    made = {
        "analysis": entry.name,
        "args": args,
        "weights": tree_digest(subject.model.state_dict()),
        "data": subject.data.fingerprint(),
        "threat": str(subject.threat),
    }
    path, kind = run.analysis_file(entry.name), entry.extra["result"]
    try:
        saved = read_json(path)
        if {k: saved.get(k) for k in made} == made:
            return kind.parse(saved["result"], str(path))
    except FileNotFoundError:
        pass
    except (CorruptFile, UserError) as error:
        progress.log(f"{error}; doing it again")
    result = ANALYSES.create(name, {"subject": subject, **args})
    content = {**made, "result": result.model_dump(mode="json"), **provenance(command_line())}
    write_json(path, content)
    return result
