"""Speculative queries of the Square attack: several of each image in one pass.

Once few queries are kept, the next ones of an image are tried in the same pass as if this one were
not kept: the first that is better counts, and those after it are tried again on top of it. The
result is that of queries one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from buttress.attacks.losses import margin_if_finite, very_confident_logits
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.square.proposals import SquareState, WindowProposals, draw_proposals
from buttress.attacks.square.windows import draw_query_bits

MAX_SPECULATIVE = 16  # queries of an image that are tried at once, where few images are left
MAX_WASTE = 0.04  # of the queries may be made in vain
INITIAL_ACCEPTANCE = 0.1  # fraction of queries that are kept, before it is known
ACCEPTANCE_WINDOW = 64  # queries over which that fraction is averaged
PASSES_AHEAD = 16  # passes whose windows are drawn at once
MAX_PIXELS_AHEAD = 2**22  # of windows that are drawn ahead


def evaluate_speculatively(
    problem: Problem, state: SquareState, side_schedule: Tensor
) -> ModelOutput:
    """Passes until an image is fooled or all have made `PASSES_AHEAD` passes or so.

    ``side_schedule`` (queries,) has the sides of the windows. Images that are behind go first.
    The logits are those of new best points, very confident ones where there is none.
    """
    batch = _plan_queries(problem, state, side_schedule)
    assert problem.clean_logits is not None
    logits = very_confident_logits(problem.clean_logits, problem.y)
    while len(unfinished := (batch.num_done < batch.num_queries).nonzero()[:, 0]):
        if batch.run_pass(unfinished, logits):
            break
    batch.write_back()
    state.x_t = state.best_x
    return ModelOutput(logits, state.best_margin, None)


def _plan_queries(problem: Problem, state: SquareState, table: Tensor) -> SpeculativeQueries:
    """The images that are behind, and windows for their next queries, all of one size."""
    query = state.step - 1
    rows = (table[query] == table[query].max()).nonzero()[:, 0]
    first_query, changes = query[rows], (table.diff() != 0).nonzero()[:, 0] + 1
    ends = torch.cat([changes, torch.tensor([len(table)])])
    end = ends[torch.searchsorted(changes, first_query, right=True)]
    side = int(table[first_query[0]])
    max_ahead = max(1, MAX_PIXELS_AHEAD // (len(rows) * problem.x.shape[1] * side**2))
    acceptance_rate = max(float(state.acceptance_rate[rows].mean()), MAX_WASTE / MAX_SPECULATIVE)
    count = 1 + int(2 * MAX_WASTE / acceptance_rate)
    num_queries = (end - first_query).clamp_max(min(max_ahead, PASSES_AHEAD * count))
    bits = draw_query_bits(state.key[rows], first_query, int(num_queries.max()))
    proposals = draw_proposals(problem.select(rows), side, bits)
    return SpeculativeQueries(problem, state, rows, proposals, num_queries, count)


@dataclass
class SpeculativeQueries:
    """The next queries of some images."""

    problem: Problem
    state: SquareState
    rows: Tensor  # (R,) which images of the problem
    proposals: WindowProposals
    num_queries: Tensor  # (R,) queries that are to be made
    max_per_pass: int  # queries of an image that are tried at once, at most

    def __post_init__(self) -> None:
        self.num_done, self.num_tried, self.num_accepted = (
            torch.zeros_like(self.num_queries) for _ in range(3)
        )
        self.is_non_finite = torch.zeros_like(self.num_queries, dtype=torch.bool)

    def run_pass(self, unfinished: Tensor, logits: Tensor) -> bool:
        """One pass for the images that are ``unfinished``; whether one of them was fooled."""
        state = self.state
        row, query_column, done = self._next_queries(unfinished)
        points = self._propose(unfinished, row, query_column)
        images = self.rows.index_select(0, unfinished.index_select(0, row))
        with torch.no_grad():
            point_logits = self.problem.model(self.problem.images_at(points, images))
        loss = margin_if_finite(point_logits, self.problem.y.index_select(0, images))
        self.num_tried.index_add_(0, unfinished, done)
        if not (is_finite := loss.isfinite()).all():
            self.is_non_finite[unfinished[row[~is_finite]]] = True
        is_better = loss > state.best_margin.index_select(0, images)
        if len(accepted := _first_in_group(is_better, row)):
            loss, accepted_rows = loss.index_select(0, accepted), row.index_select(0, accepted)
            accepted_images = images.index_select(0, accepted)
            done.index_copy_(0, accepted_rows, query_column.index_select(0, accepted) + 1)
            self.num_accepted[unfinished.index_select(0, accepted_rows)] += 1
            state.best_x.index_copy_(0, accepted_images, points.index_select(0, accepted))
            state.best_margin.index_copy_(0, accepted_images, loss)
            logits.index_copy_(0, accepted_images, point_logits.index_select(0, accepted))
        self.num_done.index_add_(0, unfinished, done)
        return bool((loss > 0).any()) if len(accepted) else False

    def _propose(self, unfinished: Tensor, row: Tensor, query_column: Tensor) -> Tensor:
        """(P, C, H, W) the points of a pass; as many queries of each image share its copy."""
        rows, best_x = self.rows[unfinished], self.state.best_x
        first, count = self.num_done[unfinished], len(row) // len(rows)
        if count * len(rows) == len(row) and int(query_column.max()) < count:
            queries = self.proposals.select_queries(
                unfinished, first[:, None] + query_column[:count]
            )
            if len(rows) == len(best_x):  # rows are distinct and in ascending order
                return queries.apply_to(self.problem, best_x).flatten(0, 1)
            best_x = best_x.index_select(0, rows)
            return queries.apply_to(self.problem, best_x, rows).flatten(0, 1)
        queries = self.proposals.select_queries(
            unfinished[row], (first[row] + query_column)[:, None]
        )
        images = rows[row]
        return queries.apply_to(self.problem, best_x.index_select(0, images), images)[:, 0]

    def _next_queries(self, unfinished: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The row and the column of each point of a pass, and (R,) the points of each row."""
        room = self.problem.saturating_batch // len(unfinished)
        count = max(1, min(MAX_SPECULATIVE, room, self.max_per_pass))
        num_points = (self.num_queries - self.num_done)[unfinished].clamp_max(count)
        is_made = torch.arange(int(num_points.max())) < num_points[:, None]
        row, query_column = is_made.nonzero(as_tuple=True)
        return row, query_column, num_points

    def write_back(self) -> None:
        """Writes the queries made into the state, and their passes into the counter."""
        state, rows = self.state, self.rows
        if (counter := self.problem.counter) is not None:
            counter_rows = self.problem.counter_rows[rows]
            counter.count_forward(counter_rows, self.is_non_finite, self.num_tried)
        weight = (self.num_tried / (self.num_tried + ACCEPTANCE_WINDOW)).to(state.acceptance_rate)
        acceptance = (self.num_accepted / self.num_tried.clamp_min(1)).to(state.acceptance_rate)
        state.acceptance_rate[rows] = torch.lerp(state.acceptance_rate[rows], acceptance, weight)
        state.step = (state.step - 1).index_add(0, rows, self.num_done)  # the loop adds one


def _first_in_group(mask: Tensor, groups: Tensor) -> Tensor:
    """The first place of the mask in each group; groups stand side by side."""
    positions = mask.nonzero()[:, 0]
    group_of = groups[positions]
    is_first = torch.ones_like(group_of, dtype=torch.bool)
    is_first[1:] = group_of[1:] != group_of[:-1]
    return positions[is_first]
