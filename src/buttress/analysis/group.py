"""Robust accuracy of the runs of a group, read from their evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buttress.analysis.subject import RunGroup
from buttress.config import Spec
from buttress.errors import UserError
from buttress.results.core import CLEAN, WORST_CASE
from buttress.results.evaluation import Evaluation
from buttress.results.run import Run
from buttress.results.run_results import RunResults


class AccuracyInterval(Spec):
    """An accuracy with its 95% interval over the draw of images."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RunScore:
    """One evaluated run."""

    label: str
    run: Run
    robust_accuracy: AccuracyInterval
    clean_accuracy: AccuracyInterval
    num_images: int


@dataclass(frozen=True)
class GroupScores:
    """Scores of the evaluated runs of a group, with notes on their comparability."""

    suite: str
    attack: str
    runs: tuple[RunScore, ...]
    missing: tuple[str, ...]  # labels of runs without this evaluation
    notes: tuple[str, ...]


def group_scores(group: RunGroup, suite: str = "", attack: str = WORST_CASE) -> GroupScores:
    """Worst-case robust accuracy of each run under a suite, or that under one attack.

    Raises:
        UserError: fewer than two runs were evaluated with the suite.
    """
    suite_name = suite or _common_suite(group.runs)
    scores: list[RunScore] = []
    evaluations: list[Evaluation] = []
    missing: list[str] = []
    for label, run in zip(group.labels, group.runs, strict=True):
        if suite_name not in run.suites():
            missing.append(label)
            continue
        evaluation = RunResults(run).evaluation(suite_name)
        evaluation.check_complete(str(run.path))
        evaluations.append(evaluation)
        scores.append(_run_score(label, run, evaluation, attack))
    if len(scores) < 2:
        raise UserError(
            f"at least two runs must be evaluated with suite {suite_name!r}, but "
            f"{len(scores)} of {len(group)} are; run `buttress evaluate RUN --suite "
            f"{suite_name}` on the others"
        )
    return GroupScores(
        suite_name,
        attack,
        tuple(scores),
        tuple(missing),
        _comparability_notes(evaluations, missing),
    )


def _common_suite(runs: Sequence[Run]) -> str:
    """The one suite that all evaluated runs share."""
    suites = [run.suites() for run in runs if run.suites()]
    if not suites:
        raise UserError("no run has been evaluated; run `buttress evaluate RUN --suite NAME` first")
    shared = [s for s in suites[0] if all(s in suite_names for suite_names in suites)]
    if len(shared) == 1:
        return shared[0]
    all_suites = sorted({s for names in suites for s in names})
    if shared:
        raise UserError(
            "several suites were evaluated on all runs; choose one with --set "
            f"suite=NAME: {', '.join(shared)}"
        )
    raise UserError(
        "no suite was evaluated on all runs; choose one with --set suite=NAME: "
        f"{', '.join(all_suites)}"
    )


def _run_score(label: str, run: Run, evaluation: Evaluation, attack: str) -> RunScore:
    for name in (CLEAN, attack):
        if name != WORST_CASE and name not in evaluation.records:
            raise UserError(
                f"{run.path} has no record of {name!r} in suite {evaluation.suite!r}; it has "
                f"{', '.join([*evaluation.records, WORST_CASE])}"
            )
    return RunScore(
        label, run, _accuracy(evaluation, attack), _accuracy(evaluation, CLEAN), len(evaluation)
    )


def _accuracy(evaluation: Evaluation, name: str) -> AccuracyInterval:
    estimate = evaluation.estimate(name)
    low, high = estimate.interval
    return AccuracyInterval(value=estimate.accuracy, low=low, high=high)


def _comparability_notes(
    evaluations: Sequence[Evaluation], missing: Sequence[str]
) -> tuple[str, ...]:
    """Reasons why numbers of different runs may not be comparable."""
    notes = [f"not evaluated with this suite: {', '.join(missing)}"] if missing else []
    images = {e.sample_ids.tobytes() for e in evaluations}
    if len(images) > 1:
        notes.append("the runs were not attacked on the same images")
    attacks = {tuple(r.definition for r in e.records.values()) for e in evaluations}
    if len(attacks) > 1:
        notes.append("the attacks of the suite, their budgets or arguments differ between runs")
    if any(e.warnings for e in evaluations):
        notes.append("some evaluations have warnings; `buttress report` shows them")
    return tuple(notes)
