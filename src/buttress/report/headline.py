"""The result of a leaderboard in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from buttress.report.formatting import (
    format_interval,
    format_percent,
    format_percent_pair,
    pluralize,
)
from buttress.report.leaderboard import Leaderboard, LeaderboardRow
from buttress.statistics import mcnemar


@dataclass(frozen=True)
class Headline:
    """``best_model`` + ``statement`` is the sentence; the rest may be empty."""

    best_model: str
    statement: str
    contrast: str = ""  # the best model of the other kind of training
    significance: str = ""  # whether the difference to the second is significant
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class BestModel:
    """The most robust model under one attack."""

    title: str
    threat: str
    relation: str
    label: str
    objective: str
    slug: str
    value: str
    interval: str
    num_ties: int  # how many more have the same accuracy


def build_headline(board: Leaderboard) -> Headline:
    rows = board.ranked
    if not rows and any(r.worst_case.is_untrustworthy for r in board.rows):
        text = f"No evaluation with suite {board.suite} is trustworthy; see the notes."
        return Headline("", text)
    if not rows:
        text = f"No model has a complete evaluation with suite {board.suite}."
        return Headline("", text)
    top = [r for r in rows if r.rank == 1]
    estimate = top[0].worst_case.estimate
    assert estimate is not None
    images = f"{estimate.n} {board.split} images".replace("  ", " ")
    if estimate.correct == 0:
        return Headline(
            "No model is robust:", f"worst-case robust accuracy is 0% on {images} for all models."
        )
    low, high = estimate.interval
    interval = f"{format_percent(low, '')} to {format_percent(high)}"
    counts = (
        f"worst-case robust accuracy {format_percent(estimate.accuracy)} on {images} "
        f"(95% interval {interval})."
    )
    if len(rows) == 1:
        return Headline(f"{top[0].run.description}:", counts, notes=top[0].worst_case.notes)
    if len(top) > 1:
        names = " and ".join(r.run.description for r in top[:2])
        more = f"(and {len(top) - 2} more) " if len(top) > 2 else ""
        text = f"{more}are equally robust: {counts}"
        return Headline(names, text, contrast_sentence(rows, top[0]))
    return Headline(
        top[0].run.description,
        f"is the most robust: {counts}",
        contrast_sentence(rows, top[0]),
        significance_sentence(top[0], rows[1]),
        top[0].worst_case.notes,
    )


def contrast_sentence(rows: tuple[LeaderboardRow, ...], best: LeaderboardRow) -> str:
    """The best model of the other kind of training, standard or adversarial."""
    others = [r for r in rows if r.run.is_standard != best.run.is_standard]
    if not others or others[0].worst_case.estimate is None:
        return ""
    kind = "adversarially trained" if best.run.is_standard else "standard"
    estimate = others[0].worst_case.estimate
    value = f"{format_percent(estimate.accuracy)} ({format_interval(*estimate.interval)})"
    return f"The best {kind} model, {others[0].run.label}, has {value}."


def significance_sentence(first: LeaderboardRow, second: LeaderboardRow) -> str:
    """Test whether the first two differ significantly."""
    ahead = int(np.sum(first.suite.is_robust & ~second.suite.is_robust))
    behind = int(np.sum(second.suite.is_robust & ~first.suite.is_robust))
    assert first.worst_case.estimate is not None
    assert second.worst_case.estimate is not None
    first_text, second_text = format_percent_pair(
        first.worst_case.estimate.accuracy, second.worst_case.estimate.accuracy
    )
    name = second.run.description
    if mcnemar(ahead, behind) > 0.05:
        not_significant = "the difference is not significant on these images"
        return f"Second is {name} with {second_text} against {first_text}: {not_significant}."
    significant = "the difference is significant (McNemar's test, p < 0.05)"
    return f"Second is {name} with {second_text}; {significant}."


def best_models(board: Leaderboard) -> list[BestModel]:
    """The most robust model under each attack, in the order of the table."""
    models = []
    for index, column in enumerate(board.columns):
        best = [r for r in board.rows if r.cells[index].is_best]
        if not best:
            continue
        estimate = best[0].cells[index].estimate
        assert estimate is not None
        definition = column.definition
        models.append(
            BestModel(
                title="clean" if definition.is_clean else column.title,
                threat=definition.threat,
                relation=column.relation,
                label=best[0].run.label,
                objective=best[0].run.objective,
                slug=best[0].run.slug,
                value=format_percent(estimate.accuracy),
                interval=format_interval(*estimate.interval),
                num_ties=len(best) - 1,
            )
        )
    return models


def unranked_sentence(board: Leaderboard) -> str:
    """State how many models are not ranked, if any."""
    untrustworthy = sum(r.worst_case.is_untrustworthy for r in board.rows)
    missing = len(board.rows) - len(board.ranked) - untrustworthy
    reasons = {
        "with an incomplete evaluation": missing,
        "with a result that is not trustworthy": untrustworthy,
    }
    return " ".join(
        f"{pluralize(count, 'model')} of {len(board.rows)} {reason}: not ranked."
        for reason, count in reasons.items()
        if count
    )
