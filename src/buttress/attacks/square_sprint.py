"""Sprints of the Square attack: many queries of each image between two looks of the loop.

Once few queries are kept, the next ones of an image are tried in the same pass as if this one were
not kept: the first that is better counts, and those after it are tried again on top of it. What is
found is what queries one by one find.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem, Seen
from buttress.attacks.square_forecast import BLOCK, Hopes, begin_block, block_of
from buttress.attacks.square_patches import ALL, Effect, Patches, draw_patches
from buttress.attacks.square_state import SquareState
from buttress.attacks.square_windows import draw

MOST = 16  # queries of an image that are tried at once, where few images are left
WASTE = 0.04  # of the queries may be tried in vain for that
WASTE_FORECAST = 0.2  # the same where most are left out, and a pass is a small part of the work
KEPT = 0.1  # the share of queries that is kept, before it is known
MEMORY = 64  # queries over which that share is averaged
ROUNDS = 16  # passes whose windows are drawn at once
PIXELS = 2**22  # of windows that are drawn ahead
PAUSE = 0.5  # seconds after which the loop is to look, for those who watch


def sprint(problem: Problem, state: SquareState, table: Tensor, *, forecast: bool) -> Seen:
    """Passes until an image is broken, all are at the end of a stretch, or time is up.

    ``table`` (queries,) has the sides of the windows. Images that are behind go first. Shows the
    best points; where none is new, nothing.
    """
    course = _course(problem, state, table, forecast)
    logits = state.best_x.new_full((len(state.step), problem.num_classes), torch.nan)
    began = time.monotonic()
    while len(going := (course.done < course.left).nonzero()[:, 0]):
        if course.run(going, logits) or time.monotonic() - began > PAUSE:
            break
    course.end()
    state.x_t = state.best_x
    return Seen(logits, state.best, None)


def _course(problem: Problem, state: SquareState, table: Tensor, forecast: bool) -> Course:
    """The images that are behind, and windows for their next queries, all of one size."""
    query = state.step - 1
    stretch = block_of(query) if forecast else -table[query]
    rows = (stretch == stretch.min()).nonzero()[:, 0]
    first, changes = query[rows], (table.diff() != 0).nonzero()[:, 0] + 1
    ends = torch.cat([changes, torch.tensor([len(table)])])
    end = ends[torch.searchsorted(changes, first, right=True)]
    if forecast:
        begin_block(problem, state, rows)
        end = end.minimum((block_of(first) + 1) * BLOCK + 1)
    side = int(table[first[0]])
    fit = max(1, PIXELS // (len(rows) * problem.x.shape[1] * side**2))
    kept = max(float(state.kept[rows].mean()), WASTE / MOST)
    count = 1 + int(2 * (WASTE_FORECAST if forecast else WASTE) / kept)
    left = (end - first).clamp_max(min(fit, BLOCK if forecast else ROUNDS * count))
    bits = draw(state.key[rows], first, int(left.max()))
    ahead = draw_patches(problem.select(rows), side, bits)
    hopes = Hopes.of(state, rows, bits) if forecast else None
    return Course(problem, state, rows, ahead, left, count, hopes)


@dataclass
class Course:
    """The next queries of some images."""

    problem: Problem
    state: SquareState
    rows: Tensor  # (R,) which images of the problem
    ahead: Patches
    left: Tensor  # (R,) queries that are to be made
    count: int  # queries of an image that are tried at once, at most
    hopes: Hopes | None  # what is known of their forecasts

    def __post_init__(self) -> None:
        self.done, self.tries, self.kept = (torch.zeros_like(self.left) for _ in range(3))
        self.is_bad = torch.zeros_like(self.left, dtype=torch.bool)

    def run(self, going: Tensor, logits: Tensor) -> bool:
        """One pass for the images that are ``going``; whether one of them was broken."""
        state, rows = self.state, self.rows[going]
        best_x = _some(state.best_x, rows)
        count = max(1, min(MOST, self.problem.full // len(going), self.count))
        query, tries, effect = self._next(going, rows, best_x, count)
        order = tries.cumsum(1)
        row, place = (tries & (order <= count)).nonzero(as_tuple=True)
        is_beyond = tries & (order > count)
        width = (self.left - self.done)[going].clamp_max(tries.shape[1])
        done = torch.where(is_beyond.any(1), is_beyond.int().argmax(1), width)
        is_found = False
        if len(row):
            here = rows[row]
            patches = self.ahead.pick(going[row], query[row, place][:, None])
            tried = patches.on(self.problem, best_x[row], here)[:, 0]
            with torch.no_grad():
                shown = self.problem.model(tried)
            loss, before = margin(shown, self.problem.y[here]), state.best[here]
            self.tries[going] += order[:, -1].clamp_max(count)
            self.is_bad[going[row[~loss.isfinite()]]] = True
            first = _firsts(loss > before, row)
            better, chosen = row[first], here[first]
            done[better] = place[first] + 1
            if self.hopes is not None and effect is not None:
                counts = place < done[row]  # those after one that was kept will be tried again
                errors = (loss - before - effect.change[row, place]) / effect.size[row, place]
                self.hopes.learn(going[row[counts]], errors[counts])
            self.kept[going[better]] += 1
            state.best_x[chosen], state.best[chosen] = tried[first], loss[first]
            logits[chosen] = shown[first]
            is_found = bool((loss[first] > 0).any())
        self.done[going] += done
        return is_found

    def _next(
        self, going: Tensor, rows: Tensor, best_x: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Effect | None]:
        """(R, Q) the next queries, which of them may be kept, and what they are said to do."""
        wide = count if self.hopes is None else self.hopes.width(count)
        wide = min(wide, int((self.left - self.done)[going].max()))
        query = self.done[going][:, None] + torch.arange(wide)
        is_open = query < self.left[going][:, None]
        query.clamp_max_(len(self.ahead) - 1)
        if self.hopes is None:
            return query, is_open, None
        slope, which = _some(self.state.slope, rows), ALL if best_x is self.state.best_x else rows
        effect = self.ahead.pick(going, query).effect(self.problem, best_x, slope, which)
        return query, self.hopes.of_queries(effect, going, query) & is_open, effect

    def end(self) -> None:
        """Puts what was done into the state, and what it cost into the meter."""
        state, rows = self.state, self.rows
        if (meter := self.problem.meter) is not None:
            meter.add(self.problem.meter_rows[rows], self.is_bad, self.tries)
        weight = (self.tries / (self.tries + MEMORY)).to(state.kept)
        share = (self.kept / self.tries.clamp_min(1)).to(state.kept)
        state.kept[rows] = torch.lerp(state.kept[rows], share, weight)
        state.step = (state.step - 1).index_add(0, rows, self.done)  # the loop adds one
        if self.hopes is not None:
            self.hopes.end(state, rows)


def _some(values: Tensor, rows: Tensor) -> Tensor:
    """Rows in ascending order; nothing is copied where they are all."""
    return values if len(rows) == len(values) else values[rows]


def _firsts(mask: Tensor, groups: Tensor) -> Tensor:
    """The first place of the mask in each group; groups stand side by side."""
    places = mask.nonzero()[:, 0]
    found = groups[places]
    is_first = torch.ones_like(found, dtype=torch.bool)
    is_first[1:] = found[1:] != found[:-1]
    return places[is_first]
