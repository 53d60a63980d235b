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
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.square.proposals import (
    ALL_IMAGES,
    LinearEffect,
    SquareState,
    WindowProposals,
    draw_proposals,
)
from buttress.attacks.square.skipping import (
    QUERIES_PER_GRADIENT,
    QueryFilter,
    gradient_block,
    update_gradients,
)
from buttress.attacks.square.windows import draw_query_bits

MAX_SPECULATIVE = 16  # queries of an image that are tried at once, where few images are left
MAX_WASTE = 0.04  # of the queries may be tried in vain for that
MAX_WASTE_SKIPPING = 0.2  # the same where most are left out, and a pass is a small part of the work
INITIAL_ACCEPTANCE = 0.1  # the share of queries that is kept, before it is known
ACCEPTANCE_WINDOW = 64  # queries over which that share is averaged
PASSES_AHEAD = 16  # passes whose windows are drawn at once
MAX_PIXELS_AHEAD = 2**22  # of windows that are drawn ahead
MAX_SECONDS = 0.5  # seconds after which the loop is to look, for those who watch


def evaluate_speculatively(
    problem: Problem, state: SquareState, side_schedule: Tensor, *, skip_queries: bool
) -> ModelOutput:
    """Passes until an image is broken, all are at the end of a stretch, or time is up.

    ``side_schedule`` (queries,) has the sides of the windows. Images that are behind go first.
    Shows the best points; where none is new, nothing.
    """
    batch = _plan_queries(problem, state, side_schedule, skip_queries)
    logits = state.best_x.new_full((len(state.step), problem.num_classes), torch.nan)
    started = time.monotonic()
    while len(unfinished := (batch.num_done < batch.num_queries).nonzero()[:, 0]):
        if batch.run_pass(unfinished, logits) or time.monotonic() - started > MAX_SECONDS:
            break
    batch.write_back()
    state.x_t = state.best_x
    return ModelOutput(logits, state.best_margin, None)


def _plan_queries(
    problem: Problem, state: SquareState, table: Tensor, forecast: bool
) -> SpeculativeQueries:
    """The images that are behind, and windows for their next queries, all of one size."""
    query = state.step - 1
    section = gradient_block(query) if forecast else -table[query]
    rows = (section == section.min()).nonzero()[:, 0]
    first_query, changes = query[rows], (table.diff() != 0).nonzero()[:, 0] + 1
    ends = torch.cat([changes, torch.tensor([len(table)])])
    end = ends[torch.searchsorted(changes, first_query, right=True)]
    if forecast:
        update_gradients(problem, state, rows)
        end = end.minimum((gradient_block(first_query) + 1) * QUERIES_PER_GRADIENT + 1)
    side = int(table[first_query[0]])
    max_ahead = max(1, MAX_PIXELS_AHEAD // (len(rows) * problem.x.shape[1] * side**2))
    acceptance_rate = max(float(state.acceptance_rate[rows].mean()), MAX_WASTE / MAX_SPECULATIVE)
    count = 1 + int(2 * (MAX_WASTE_SKIPPING if forecast else MAX_WASTE) / acceptance_rate)
    num_queries = (end - first_query).clamp_max(
        min(max_ahead, QUERIES_PER_GRADIENT if forecast else PASSES_AHEAD * count)
    )
    bits = draw_query_bits(state.key[rows], first_query, int(num_queries.max()))
    proposals = draw_proposals(problem.select(rows), side, bits)
    query_filter = QueryFilter.from_state(state, rows, bits) if forecast else None
    return SpeculativeQueries(problem, state, rows, proposals, num_queries, count, query_filter)


@dataclass
class SpeculativeQueries:
    """The next queries of some images."""

    problem: Problem
    state: SquareState
    rows: Tensor  # (R,) which images of the problem
    proposals: WindowProposals
    num_queries: Tensor  # (R,) queries that are to be made
    max_per_pass: int  # queries of an image that are tried at once, at most
    query_filter: QueryFilter | None  # what is known of their forecasts

    def __post_init__(self) -> None:
        self.num_done, self.num_tried, self.num_accepted = (
            torch.zeros_like(self.num_queries) for _ in range(3)
        )
        self.is_non_finite = torch.zeros_like(self.num_queries, dtype=torch.bool)

    def run_pass(self, unfinished: Tensor, logits: Tensor) -> bool:
        """One pass for the images that are ``unfinished``; whether one of them was broken."""
        state, rows = self.state, self.rows[unfinished]
        best_x = _select_rows(state.best_x, rows)
        count = max(
            1,
            min(
                MAX_SPECULATIVE, self.problem.saturating_batch // len(unfinished), self.max_per_pass
            ),
        )
        query, is_candidate, effect = self._next_candidates(unfinished, rows, best_x, count)
        order = is_candidate.cumsum(1)
        row, query_column = (is_candidate & (order <= count)).nonzero(as_tuple=True)
        is_beyond = is_candidate & (order > count)
        width = (self.num_queries - self.num_done)[unfinished].clamp_max(is_candidate.shape[1])
        done = torch.where(is_beyond.any(1), is_beyond.int().argmax(1), width)
        is_fooled = False
        if len(row):
            images = rows[row]
            patches = self.proposals.select_queries(
                unfinished[row], query[row, query_column][:, None]
            )
            points = patches.apply_to(self.problem, best_x[row], images)[:, 0]
            with torch.no_grad():
                point_logits = self.problem.model(points)
            loss, best_margin = (
                margin(point_logits, self.problem.y[images]),
                state.best_margin[images],
            )
            self.num_tried[unfinished] += order[:, -1].clamp_max(count)
            self.is_non_finite[unfinished[row[~loss.isfinite()]]] = True
            accepted = _first_in_group(loss > best_margin, row)
            accepted_rows, accepted_images = row[accepted], images[accepted]
            done[accepted_rows] = query_column[accepted] + 1
            if self.query_filter is not None and effect is not None:
                is_final = (
                    query_column < done[row]
                )  # those after one that was kept will be tried again
                errors = (
                    loss - best_margin - effect.margin_change[row, query_column]
                ) / effect.move_size[row, query_column]
                self.query_filter.add_errors(unfinished[row[is_final]], errors[is_final])
            self.num_accepted[unfinished[accepted_rows]] += 1
            state.best_x[accepted_images], state.best_margin[accepted_images] = (
                points[accepted],
                loss[accepted],
            )
            logits[accepted_images] = point_logits[accepted]
            is_fooled = bool((loss[accepted] > 0).any())
        self.num_done[unfinished] += done
        return is_fooled

    def _next_candidates(
        self, going: Tensor, rows: Tensor, best_x: Tensor, count: int
    ) -> tuple[Tensor, Tensor, LinearEffect | None]:
        """(R, Q) the next queries, which of them may be kept, and what they are said to do."""
        width = count if self.query_filter is None else self.query_filter.width(count)
        width = min(width, int((self.num_queries - self.num_done)[going].max()))
        query = self.num_done[going][:, None] + torch.arange(width)
        is_open = query < self.num_queries[going][:, None]
        query.clamp_max_(len(self.proposals) - 1)
        if self.query_filter is None:
            return query, is_open, None
        margin_grad, image_rows = (
            _select_rows(self.state.margin_grad, rows),
            ALL_IMAGES if best_x is self.state.best_x else rows,
        )
        effect = self.proposals.select_queries(going, query).linear_effect(
            self.problem, best_x, margin_grad, image_rows
        )
        return query, self.query_filter.promising_queries(effect, going, query) & is_open, effect

    def write_back(self) -> None:
        """Puts what was done into the state, and what it cost into the meter."""
        state, rows = self.state, self.rows
        if (meter := self.problem.counter) is not None:
            meter.count_forward(self.problem.counter_rows[rows], self.is_non_finite, self.num_tried)
        weight = (self.num_tried / (self.num_tried + ACCEPTANCE_WINDOW)).to(state.acceptance_rate)
        acceptance = (self.num_accepted / self.num_tried.clamp_min(1)).to(state.acceptance_rate)
        state.acceptance_rate[rows] = torch.lerp(state.acceptance_rate[rows], acceptance, weight)
        state.step = (state.step - 1).index_add(0, rows, self.num_done)  # the loop adds one
        if self.query_filter is not None:
            self.query_filter.write_back(state, rows)


def _select_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Rows in ascending order; nothing is copied where they are all."""
    return values if len(rows) == len(values) else values[rows]


def _first_in_group(mask: Tensor, groups: Tensor) -> Tensor:
    """The first place of the mask in each group; groups stand side by side."""
    positions = mask.nonzero()[:, 0]
    group_of = groups[positions]
    is_first = torch.ones_like(group_of, dtype=torch.bool)
    is_first[1:] = group_of[1:] != group_of[:-1]
    return positions[is_first]
