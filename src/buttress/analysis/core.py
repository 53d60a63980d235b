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

from buttress.analysis.cost import cost_in_words
from buttress.analysis.subject import DoesNotApply, Group, Subject, subject_of
from buttress.errors import CorruptFile, UserError
from buttress.files import read_json, write_json
from buttress.models.checkpoint import tree_digest
from buttress.progress import Progress, Silent
from buttress.records.run import Run, command_line, provenance
from buttress.registry import Entry, Registry
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Analysis(Protocol):
    """Computes a result from a subject, a group or nothing; keyword arguments are its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Spec: ...


class Plot(Protocol):
    """Draws the results of one or several runs into a figure."""

    def __call__(self, results: Mapping[str, Any], figure: Figure) -> None: ...


A = TypeVar("A", bound=Analysis)


class Analyses(Registry[Analysis]):
    """The table of analyses: to type checkers each keeps its own parameters and result."""

    if TYPE_CHECKING:

        def register(
            self,
            name: str,
            *,
            paper: str = "",
            tags: tuple[str, ...] = (),
            about: str = "",
            **extra: Any,
        ) -> Callable[[A], A]: ...


Cost = Callable[..., Any]  # passes, passes of several networks, or a sentence
ANALYSES = Analyses("analysis")
LOOKED_AT = ("subject", "group", "progress")  # parameters that are not the user's


def list_analyses(tag: str | None = None) -> list[str]:
    return ANALYSES.names(tag)


def analyse(
    name: str,
    run: str | Path | Run,
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
        progress: where to say what it will cost, and what is done again.

    Raises:
        DoesNotApply: the analysis has no meaning for this model.
    """
    run = run if isinstance(run, Run) else Run(run)
    progress, entry = progress or Silent(), ANALYSES.entry(name)
    args = settled(entry, args)
    if is_together(entry):
        raise UserError(f"analysis {entry.name!r} compares runs: use analyse_together")
    if is_standalone(entry):
        raise UserError(f"analysis {entry.name!r} looks at no run: use analyse_alone")
    subject = subject or subject_of(run, progress=progress)
    made = {
        "analysis": entry.name,
        "args": args,
        "weights": tree_digest(subject.model.state_dict()),
        "data": subject.data.fingerprint(),
        "threat": str(subject.threat),
    }
    path = run.analysis_file(entry.name)

    def price(cost: Cost) -> str:
        return cost_in_words([(subject, cost(subject, **args))])

    found = _obtained(path, made, entry, {"subject": subject}, price, progress)
    run.mend([path])
    return found


def analyse_together(
    name: str,
    runs: Sequence[str | Path | Run],
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Spec:
    """Computes an analysis of several runs and saves it as ``out/<name>.json``."""
    progress, entry = progress or Silent(), ANALYSES.entry(name)
    args = settled(entry, args)
    if not is_together(entry):
        raise UserError(f"analysis {entry.name!r} looks at one run: use analyse")
    group = Group(tuple(r if isinstance(r, Run) else Run(r) for r in runs), limit, progress)
    group.check()
    keys = [[run.path.name, run.spec.key(), records_of(run)] for run in group.runs]
    made = {"analysis": entry.name, "args": args, "runs": keys, "limit": limit}

    def price(cost: Cost) -> str:
        return cost_in_words(cost(group, **args))

    return _obtained(out / f"{entry.name}.json", made, entry, {"group": group}, price, progress)


def analyse_alone(
    name: str,
    out: Path,
    *,
    args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Spec:
    """Computes an analysis that needs no run and saves it as ``out/<name>.json``."""
    progress, entry = progress or Silent(), ANALYSES.entry(name)
    args = settled(entry, args)
    if not is_standalone(entry):
        raise UserError(f"analysis {entry.name!r} looks at runs: use analyse or analyse_together")
    made = {"analysis": entry.name, "args": args}

    def price(cost: Cost) -> str:
        return str(cost(**args))

    path, looked_at = out / f"{entry.name}.json", {"progress": progress}
    return _obtained(path, made, entry, looked_at, price, progress)


def settled(entry: Entry[Analysis], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of an analysis with its defaults, as a file keeps them.

    A result is saved under all of them, so that one made with another default is not used again.
    """
    known = inspect.signature(entry.value).parameters.values()
    usual = {p.name: p.default for p in known if p.default is not p.empty}
    whole: dict[str, Any] = json.loads(json.dumps({**usual, **(given or {})}))
    ANALYSES.check(entry.name, whole, besides=LOOKED_AT)
    return whole


def is_together(entry: Entry[Analysis]) -> bool:
    """Whether an analysis looks at several runs at once."""
    return bool(entry.extra.get("together"))


def is_standalone(entry: Entry[Analysis]) -> bool:
    """Whether an analysis looks at no run."""
    return bool(entry.extra.get("standalone"))


def records_of(run: Run) -> dict[str, float]:
    """The files an analysis of several runs may read, with the times they were written."""
    kept = [*run.path.glob("eval/*/*.parquet"), *run.path.glob("analysis/*.json")]
    kept += [run.path / "done.json", run.checkpoint("best")]
    return {
        p.relative_to(run.path).as_posix(): p.stat().st_mtime for p in sorted(kept) if p.is_file()
    }


def _obtained(
    path: Path,
    made: Mapping[str, Any],
    entry: Entry[Analysis],
    looked_at: Mapping[str, Any],
    price: Callable[[Cost], str],
    progress: Progress,
) -> Spec:
    """The saved answer to this very question; else its cost is said, and it is computed."""
    saved = _saved(path, made, entry, progress)
    if saved is not None:
        return saved
    if cost := entry.extra.get("cost"):
        progress.log(f"{entry.name}: {price(cost)}")
    return _save(
        path, made, entry, lambda: ANALYSES.create(entry.name, {**looked_at, **made["args"]})
    )


def _saved(
    path: Path, made: Mapping[str, Any], entry: Entry[Analysis], progress: Progress
) -> Spec | None:
    """The result at ``path`` if it is whole and answers this very question."""
    try:
        content = read_json(path)
        if {k: content.get(k) for k in made} != dict(made):
            return None
        if reason := content.get("does_not_apply"):
            raise DoesNotApply(str(reason))
        kind: type[Spec] = entry.extra["result"]
        return kind.parse(content["result"], str(path))
    except FileNotFoundError:
        return None
    except DoesNotApply:
        raise
    except (CorruptFile, UserError, KeyError) as error:
        progress.log(f"{error}; doing it again")
        return None


def _save(
    path: Path, made: Mapping[str, Any], entry: Entry[Analysis], compute: Callable[[], Spec]
) -> Spec:
    """Computes and writes a result with its picture; that it does not apply is a result too."""
    from buttress.analysis.draw import draw

    trace = provenance(command_line())
    try:
        result = compute()
    except DoesNotApply as error:
        write_json(path, {**made, "result": None, "does_not_apply": str(error), **trace})
        raise
    says = entry.extra.get("says")
    content = {**made, "result": result.model_dump(mode="json"), **trace}
    write_json(path, {**content, "says": says(result) if says else ""})
    draw(entry.extra["plot"], {"": result}, path.with_suffix(".svg"))
    return result
