"""The result of a board in one plain sentence, computed from the verdicts."""

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
    """``winner`` + ``verdict`` is the sentence; the rest may be empty."""

    winner: str
    verdict: str
    contrast: str = ""  # the best model of the other kind of training
    lead: str = ""  # whether the distance to the second is more than chance
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class BestModel:
    """The best model against one attack."""

    title: str
    threat: str
    training: str
    who: str
    how: str
    slug: str
    value: str
    interval: str
    others: int  # how many more reach the same number


def build_headline(board: Leaderboard) -> Headline:
    rows = board.ranked
    if not rows and any(r.worst.is_doubtful for r in board.rows):
        return Headline("", f"No result of suite {board.suite} can be trusted; the notes say why.")
    if not rows:
        text = f"No model has a result for every attack of suite {board.suite} yet."
        return Headline("", text)
    top = [r for r in rows if r.rank == 1]
    share = top[0].worst.share
    assert share is not None
    images = f"{share.images} {board.split} images".replace("  ", " ")
    if share.hits == 0:
        return Headline("No model held:", f"not one of {images} survives every attack.")
    interval = f"{format_percent(share.low, '')} to {format_percent(share.high)}"
    counts = (
        f"{format_percent(share.value)} of {images} survive every attack (95% interval {interval})."
    )
    if len(rows) == 1:
        return Headline(f"{top[0].run.described}:", counts, notes=top[0].worst.notes)
    if len(top) > 1:
        names = " and ".join(r.run.described for r in top[:2])
        more = f" (and {len(top) - 2} more)" if len(top) > 2 else ""
        return Headline(names, f"{more}held best, level: {counts}", contrast_sentence(rows, top[0]))
    return Headline(
        top[0].run.described,
        f"held best: {counts}",
        contrast_sentence(rows, top[0]),
        significance_sentence(top[0], rows[1]),
        top[0].worst.notes,
    )


def contrast_sentence(rows: tuple[LeaderboardRow, ...], best: LeaderboardRow) -> str:
    """How the best model that was trained the other way (standard or robust) does."""
    others = [r for r in rows if r.run.is_standard != best.run.is_standard]
    if not others or others[0].worst.share is None:
        return ""
    kind = "adversarially trained" if best.run.is_standard else "standard"
    share = others[0].worst.share
    value = f"{format_percent(share.value)} ({format_interval(share.low, share.high)})"
    return f"The best {kind} model, {others[0].run.label}, keeps {value}."


def significance_sentence(first: LeaderboardRow, second: LeaderboardRow) -> str:
    """Compares the first two image by image."""
    ahead = int(np.sum(first.suite.survived & ~second.suite.survived))
    behind = int(np.sum(second.suite.survived & ~first.suite.survived))
    assert first.worst.share is not None
    assert second.worst.share is not None
    first_text, second_text = format_percent_pair(first.worst.share.value, second.worst.share.value)
    name = second.run.described
    if mcnemar(ahead, behind) > 0.05:
        not_significant = "on these images the order of the two may be chance"
        return f"Second is {name} with {second_text} against {first_text}: {not_significant}."
    significant = "the lead is more than chance (McNemar's test, p < 0.05)"
    return f"Second is {name} with {second_text}; {significant}."


def best_models(board: Leaderboard) -> list[BestModel]:
    """The best model against each attack, in the order of the table."""
    found = []
    for index, column in enumerate(board.columns):
        best = [r for r in board.rows if r.cells[index].is_best]
        if not best:
            continue
        share = best[0].cells[index].share
        assert share is not None
        definition = column.definition
        found.append(
            BestModel(
                title="no attack" if definition.is_clean else column.title,
                threat=definition.threat,
                training=column.training,
                who=best[0].run.label,
                how=best[0].run.objective,
                slug=best[0].run.slug,
                value=format_percent(share.value),
                interval=format_interval(share.low, share.high),
                others=len(best) - 1,
            )
        )
    return found


def unranked_sentence(board: Leaderboard) -> str:
    """Says how many models have no rank, if any."""
    untrustworthy = sum(r.worst.is_doubtful for r in board.rows)
    missing = len(board.rows) - len(board.ranked) - untrustworthy
    reasons = {
        "without a full result": missing,
        "with a result that cannot be trusted": untrustworthy,
    }
    return " ".join(
        f"{pluralize(count, 'model')} of {len(board.rows)} {reason}: not ranked."
        for reason, count in reasons.items()
        if count
    )
