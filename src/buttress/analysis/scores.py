"""How well the runs of a group hold: one suite or attack, read from their evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buttress.analysis.subject import Group
from buttress.comparison.sides import check_whole
from buttress.errors import UserError
from buttress.records.evaluation import Evaluation, load_evaluation
from buttress.records.run import Run
from buttress.spec import Spec

CLEAN, WORST = "clean", "worst_case"


class Accuracy(Spec):
    """A share of images with its 95% interval over the draw of images."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """One evaluated run."""

    label: str
    run: Run
    robust: Accuracy
    clean: Accuracy
    images: int


@dataclass(frozen=True)
class Scores:
    """The evaluated runs of a group, and what a reader must know about them."""

    suite: str
    attack: str
    found: tuple[Score, ...]
    missing: tuple[str, ...]  # labels of runs without this evaluation
    notes: tuple[str, ...]


def scores_of(group: Group, suite: str = "", attack: str = WORST) -> Scores:
    """The accuracy of each run under a suite's worst case or one of its attacks.

    Raises:
        UserError: fewer than two runs were evaluated alike.
    """
    chosen = suite or _common_suite(group.runs)
    found: list[Score] = []
    evaluations: list[Evaluation] = []
    missing: list[str] = []
    for label, run in zip(group.labels, group.runs, strict=True):
        if chosen not in run.suites():
            missing.append(label)
            continue
        evaluation = load_evaluation(run.suite_folder(chosen))
        check_whole(str(run.path), evaluation)
        evaluations.append(evaluation)
        found.append(_score(label, run, evaluation, attack))
    if len(found) < 2:
        raise UserError(
            f"two runs or more must be evaluated with suite {chosen!r}, but {len(found)} of "
            f"{len(group)} are; `buttress evaluate RUN --suite {chosen}` does one"
        )
    return Scores(chosen, attack, tuple(found), tuple(missing), _notes(evaluations, missing))


def _common_suite(runs: Sequence[Run]) -> str:
    """The one suite that all evaluated runs share."""
    suites = [run.suites() for run in runs if run.suites()]
    if not suites:
        raise UserError("no run was evaluated; `buttress evaluate RUN --suite NAME` does one")
    shared = [s for s in suites[0] if all(s in others for others in suites)]
    if len(shared) == 1:
        return shared[0]
    every = sorted({s for names in suites for s in names})
    if shared:
        raise UserError(f"say which suite with --set suite=NAME: {', '.join(shared)}")
    raise UserError(
        f"no suite was run on all of them; say which with --set suite=NAME: {', '.join(every)}"
    )


def _score(label: str, run: Run, evaluation: Evaluation, attack: str) -> Score:
    for name in (CLEAN, attack):
        if name != WORST and name not in evaluation.records:
            raise UserError(
                f"{run.path} has no record of {name!r} in suite {evaluation.suite!r}; it has "
                f"{', '.join([*evaluation.records, WORST])}"
            )
    return Score(
        label, run, _accuracy(evaluation, attack), _accuracy(evaluation, CLEAN), len(evaluation)
    )


def _accuracy(evaluation: Evaluation, name: str) -> Accuracy:
    value = evaluation.worst_case if name == WORST else evaluation.accuracy[name]
    span = evaluation.interval(name)
    return Accuracy(value=value, low=span.low, high=span.high)


def _notes(evaluations: Sequence[Evaluation], missing: Sequence[str]) -> tuple[str, ...]:
    """Why numbers of different runs may not compare."""
    found = [f"not evaluated with this suite: {', '.join(missing)}"] if missing else []
    images = {next(iter(e.records.values())).ids.tobytes() for e in evaluations}
    if len(images) > 1:
        found.append("the runs were not attacked on the same images")
    attacks = {
        tuple((n, r.meta.get("threat"), str(r.meta.get("args"))) for n, r in e.records.items())
        for e in evaluations
    }
    if len(attacks) > 1:
        found.append("the attacks of the suite, their budgets or arguments differ between runs")
    if any(e.warnings for e in evaluations):
        found.append("some evaluations have warnings; `buttress report` shows them")
    return tuple(found)
