"""Square attack (Andriushchenko et al., arXiv:1912.00049): random search, no gradients.

Constants follow the reference implementation in AutoAttack. Windows and signs are drawn for each
sample from its own stream, where the reference shares them in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import (
    ATTACKS,
    Attack,
    AttackState,
    any_or_accelerator,
    broadcast_to_images,
    check_positive,
    copy_rows_,
)
from buttress.attacks.losses import margin_if_finite, very_confident_logits
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.square.proposals import L1_MARGIN, SquareState, draw_proposals
from buttress.attacks.square.speculative import INITIAL_ACCEPTANCE, evaluate_speculatively
from buttress.attacks.square.windows import (
    channel_budget,
    draw_query_bits,
    pattern_bank,
    random_bits,
    random_signs,
    window_coordinates,
    window_mask,
    window_pixels,
    window_side_schedule,
)
from buttress.errors import UserError
from buttress.system.rng import logical_shift_right, splitmix64
from buttress.threats.norm_ball import TINY, Norm

BITS_PER_BLOCK = 64  # queries whose random numbers are drawn at once
SMALL_WINDOW = 0.4  # of the image's side: smaller windows are written pixel by pixel
SEQUENTIAL_QUERIES = 201  # queries that are tried one by one, because many of them are kept


@ATTACKS.register("square", paper="arXiv:1912.00049", tags=("black_box", "iterative"))
@dataclass(frozen=True)
class Square(Attack):
    r"""Random search: a square of the perturbation is replaced, and kept if the margin grew.

    The square covers a fraction p of the image: ``p_init`` at first, halved after 10, 50, 200, 500,
    1000, 2000 and 4000 queries. Linf: vertical stripes of :math:`\pm\epsilon` at first, then
    squares of :math:`\pm\epsilon`, one sign per channel. L2 and L1: mass is moved from one window
    to another, shaped as two opposite bumps.

    Departures: windows and signs are drawn per sample; a tie of logits is no success; images that
    are not square are tiled over both sides.
    """

    needs_grad: ClassVar[bool] = False
    has_forward_only_passes: ClassVar[bool] = True
    queries: int = 5000
    restarts: int = 1
    p_init: float = 0.8

    def __post_init__(self) -> None:
        check_positive(queries=self.queries, restarts=self.restarts)
        if not 0 < self.p_init <= 1:
            raise UserError(f"`0 < p_init <= 1` must hold, but got p_init={self.p_init}")

    @property
    def max_steps(self) -> int:
        return self.queries

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        return margin_if_finite(logits, problem.y)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        key = problem.rng.sample_keys(run_index).to(problem.x.device)
        start = _stripe_start if problem.ball.norm == "Linf" else _tile_start
        x_t = start(problem, key)
        best = x_t.new_full((len(x_t),), -torch.inf)
        return SquareState(
            x_t,
            best_x=x_t.clone(),
            best_margin=best,
            key=key,
            query_bits=draw_query_bits(key, torch.zeros_like(key), BITS_PER_BLOCK),
            bits_block=torch.zeros_like(key),
            has_proposal=torch.ones_like(key, dtype=torch.bool),
            acceptance_rate=torch.full_like(best, INITIAL_ACCEPTANCE),
        )

    def evaluate(self, problem: Problem, state: AttackState) -> ModelOutput:
        """One query of each image; later, when almost none is kept, many of them."""
        assert isinstance(state, SquareState)
        if self._may_speculate(problem):
            can_speculate = self._can_speculate(problem, state)
            if can_speculate.any() and not can_speculate.all():
                return self._evaluate_rows(problem, state, ~can_speculate)
            if can_speculate.all():
                return evaluate_speculatively(problem, state, self._side_schedule(problem))
            if state.has_proposal.all():
                return super().evaluate(problem, state)
            state.x_t = state.x_t.where(
                broadcast_to_images(state.has_proposal), self._propose_query(problem, state, -1)
            )
        return super().evaluate(problem, state)

    def _may_speculate(self, problem: Problem) -> bool:
        """Never on an accelerator, nor where each query is the mean of several passes."""
        return problem.x.device.type == "cpu" and problem.eot_samples == 1

    def _can_speculate(self, problem: Problem, state: SquareState) -> Tensor:
        """(N,) whether few queries are kept, and windows are small."""
        side = self._side_schedule(problem)[(state.step - 1).clamp(0, self.queries - 1)]
        return (state.step > SEQUENTIAL_QUERIES) & (side <= SMALL_WINDOW * problem.x.shape[3])

    def _evaluate_rows(
        self, problem: Problem, state: SquareState, is_sequential: Tensor
    ) -> ModelOutput:
        """A query of the images that came later; the others wait, so that none changes its way."""
        row_state = state.select(is_sequential)
        output = self.evaluate(problem.select(is_sequential), row_state)
        logits = very_confident_logits(output.logits, problem.y)
        logits[is_sequential], loss = output.logits, state.best_margin.clone()
        loss[is_sequential] = output.loss
        state.x_t = state.x_t.clone()
        state.x_t[is_sequential] = row_state.x_t
        state.step = state.step - (~is_sequential).long()  # the loop adds one
        return ModelOutput(logits, loss, None)

    def _propose_query(self, problem: Problem, state: SquareState, offset: int = 0) -> Tensor:
        """(N, C, H, W) what each image's query tries, on top of the best point so far."""
        side, bits = self._window_sides(problem, state.step + offset), _query_bits(state, offset)
        if has_small_windows(problem, side):
            patches = draw_proposals(problem, int(side[0]), bits[:, None])
            return patches.apply_to(problem, state.best_x)[:, 0]
        return _propose_points(problem, state.best_x, side, bits)

    def _window_sides(self, problem: Problem, step: Tensor) -> Tensor:
        """(N,) the sides of the windows of each image's query."""
        return self._side_schedule(problem)[step.clamp_max(self.queries - 1)]

    def _side_schedule(self, problem: Problem) -> Tensor:
        height, width = problem.x.shape[2:]
        schedule = (self.queries, self.p_init, height, width, problem.ball.norm)
        return _schedule_on(problem.x.device, *schedule)

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, SquareState)
        if any_or_accelerator(is_better := output.loss > state.best_margin):
            copy_rows_(state.best_x, is_better, state.x_t)
            state.best_margin = output.loss.where(is_better, state.best_margin)
        is_single = not (
            self._may_speculate(problem) and bool(self._can_speculate(problem, state).all())
        )
        state.has_proposal = torch.full_like(is_better, is_single)
        return self._propose_query(problem, state) if is_single else state.x_t


@lru_cache
def _schedule_on(
    device: torch.device, queries: int, p_init: float, height: int, width: int, norm: Norm
) -> Tensor:
    """`window_side_schedule` on a device, copied there once."""
    return window_side_schedule(queries, p_init, height, width, norm).to(device)


def has_small_windows(problem: Problem, side: Tensor) -> bool:
    """Whether all windows have one small size, so that only their pixels need to be touched."""
    if side.device.type != "cpu":
        return False
    narrowest, widest = side.aminmax()
    return bool(narrowest == widest <= SMALL_WINDOW * problem.x.shape[3])


def _propose_points(problem: Problem, best: Tensor, side: Tensor, bits: Tensor) -> Tensor:
    """The points that these queries try; two hashes hold all random numbers of a query."""
    if problem.ball.norm == "Linf":
        return _propose_linf(problem, best, side, bits)
    return _propose_lp(problem, best, side, bits, splitmix64(bits))


def _query_bits(state: SquareState, offset: int = 0) -> Tensor:
    """(N,) the bits of this query."""
    step = state.step + offset
    block, column = step // BITS_PER_BLOCK, step % BITS_PER_BLOCK
    if any_or_accelerator(is_new_block := block != state.bits_block):
        copy_rows_(
            state.query_bits,
            is_new_block,
            draw_query_bits(state.key, block * BITS_PER_BLOCK, BITS_PER_BLOCK),
        )
        state.bits_block = block
    return state.query_bits.gather(1, column[:, None])[:, 0]


def _stripe_start(problem: Problem, key: Tensor) -> Tensor:
    """Vertical stripes of +-eps, a sign per channel and column."""
    x = problem.x
    channels, width = x.shape[1], x.shape[3]
    column_index = torch.arange(channels * width, device=x.device)
    signs = 2 * (logical_shift_right(splitmix64(key[:, None] + column_index), 7) & 1) - 1
    stripes = signs.to(x.dtype).view(len(x), channels, 1, width)
    return problem.project(x + problem.ball.eps * stripes)


def _propose_linf(problem: Problem, best: Tensor, side: Tensor, bits: Tensor) -> Tensor:
    assert problem.bounds is not None
    low, high = problem.bounds
    is_high = random_bits(bits, best.shape[1]).to(low.dtype)[:, :, None, None]
    window = window_mask(*window_coordinates(bits, side, best.shape), side).to(low.dtype)
    # Weights 0 and 1: a choice, but many times faster on a CPU than `where`.
    return torch.lerp(best, torch.lerp(low, high, is_high), window)


def _tile_start(problem: Problem, key: Tensor) -> Tensor:
    """Patterns all over the image, each tile with its own sign and orientation."""
    x, norm = problem.x, problem.ball.norm
    channels, height, width = x.shape[1:]
    side = max(min(height, width) // 5, 2)
    delta = torch.zeros_like(x)
    patterns = pattern_bank(side, norm).to(x)[:, side]
    tiles_down, tiles_along = height // side, width // side
    row_offset, column_offset = (height - tiles_down * side) // 2, (width - tiles_along * side) // 2
    for tile in range(tiles_down * tiles_along):
        bits = splitmix64(key + 1 + tile)
        shape = patterns[logical_shift_right(bits, 5) & 1][:, None]
        top, left = (
            row_offset + side * (tile // tiles_along),
            column_offset + side * (tile % tiles_along),
        )
        tile_view = delta[:, :, top : top + side, left : left + side]
        tile_view += shape * random_signs(bits, channels, x)
    return _scale_to_eps(problem, delta)


def _propose_lp(
    problem: Problem, best: Tensor, side: Tensor, bits: Tensor, second_bits: Tensor
) -> Tensor:
    """Takes the mass of two windows and puts it into the first, in a new shape."""
    x, norm = problem.x, problem.ball.norm
    order = 2 if norm == "L2" else 1
    channels = x.shape[1]
    delta = best - x
    rows, columns = window_coordinates(bits, side, x.shape)
    first_window = window_mask(rows, columns, side).to(x.dtype)
    windows = (
        window_mask(*window_coordinates(second_bits, side, x.shape), side)
        .to(x.dtype)
        .maximum(first_window)
    )
    mass = delta.square() if order == 2 else delta.abs()

    def norm_of(values: Tensor) -> Tensor:
        total = values.flatten(2).sum(2)[:, :, None, None]
        return total.sqrt() if order == 2 else total

    inner, removed_mass = (
        norm_of(mass * first_window),
        (mass * windows).flatten(2).sum(2)[:, :, None, None],
    )
    total = mass.flatten(1).sum(1).view(-1, 1, 1, 1)
    shape = _window_pattern(
        norm, (rows, columns), side, logical_shift_right(second_bits, 40) & 1
    ).to(x)
    new_values = torch.addcmul(delta / (inner + TINY), shape, random_signs(bits, channels, x)).mul_(
        first_window
    )
    size = norm_of(new_values.square() if order == 2 else new_values.abs()) + TINY
    factor = channel_budget(problem, total, removed_mass) / size
    return _scale_to_eps(problem, torch.addcmul(delta * (1 - windows), new_values, factor))


def _window_pattern(
    norm: Norm, window: tuple[Tensor, Tensor], side: Tensor, is_horizontal: Tensor
) -> Tensor:
    """(N, 1, H, W) the pattern of each window, upright or lying; outside it is of no use."""
    rows, columns = window
    largest = int(side.max())
    bank = pattern_bank(largest, norm).to(side.device)
    if side.device.type == "cpu" and bool((side == largest).all()):  # much the faster way
        (n, height), width = rows.shape, columns.shape[1]
        start = -rows[:, 0] * width - columns[:, 0]
        indices = start[:, None] + window_pixels(largest, 1, height, width)
        image = torch.zeros(n, height * width).scatter_(
            1, indices, bank[is_horizontal, largest].flatten(1)
        )
        return image.view(n, 1, height, width)
    i, j = rows.clamp(0, largest - 1), columns.clamp(0, largest - 1)
    return bank[is_horizontal[:, None, None], side[:, None, None], i[:, :, None], j[:, None, :]][
        :, None
    ]


def _scale_to_eps(problem: Problem, delta: Tensor) -> Tensor:
    """The point of this displacement: of length eps in L2, projected in L1."""
    x, eps = problem.x, problem.ball.eps
    if problem.ball.norm == "L1":
        return problem.project(x + delta, x.new_full((len(x),), L1_MARGIN))
    length = delta.flatten(1).norm(dim=1) + TINY
    return (x + delta * broadcast_to_images(eps / length)).clamp_(0, 1)
