"""Square attack (Andriushchenko et al., arXiv:1912.00049): random search, no gradients.

Constants follow the reference implementation in AutoAttack. Windows and signs are drawn for each
sample from its own stream, where the reference shares them in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, State, at_least_one, column, put, some
from buttress.attacks.freeze import gives_gradients
from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem, Seen
from buttress.attacks.square_patches import INSIDE, draw_patches
from buttress.attacks.square_sprint import KEPT, sprint
from buttress.attacks.square_state import SquareState
from buttress.attacks.square_windows import (
    budget,
    draw,
    footprint,
    mask,
    patterns,
    sides,
    signs_of,
    ups_of,
    window,
)
from buttress.errors import UserError
from buttress.streams import mix, shift
from buttress.threat import TINY, Norm

AHEAD = 64  # queries whose random numbers are drawn at once
SMALL = 0.4  # of the image's side: smaller windows are written pixel by pixel
EARLY = 201  # queries that are tried one by one, because many of them are kept


@ATTACKS.register("square", paper="arXiv:1912.00049", tags=("black_box", "iterative"))
@dataclass(frozen=True)
class Square(Attack):
    r"""Random search: a square of the perturbation is replaced, and kept if the margin grew.

    The square covers a share p of the image: 0.8 at first, halved after 10, 50, 200, 500, 1000,
    2000 and 4000 queries. Linf: vertical stripes of :math:`\pm\epsilon` at first, then squares of
    :math:`\pm\epsilon`, one sign per channel. L2 and L1: mass is moved from one window to another,
    shaped as two opposite bumps.

    ``forecast=True`` leaves out queries that a gradient says will not be kept, on a processor (see
    the page on performance). Then it is no black-box attack any more, and some few queries that
    would have been kept are lost.

    Departures: windows and signs are drawn per sample; a tie of logits is no success; images that
    are not square are tiled over both sides.
    """

    needs_grad: ClassVar[bool] = False
    has_queries: ClassVar[bool] = True
    queries: int = 5000
    restarts: int = 1
    share: float = 0.8
    forecast: bool = False

    def __post_init__(self) -> None:
        at_least_one(queries=self.queries, restarts=self.restarts)
        if not 0 < self.share <= 1:
            raise UserError(f"`0 < share <= 1` must hold, but got share={self.share}")

    @property
    def length(self) -> int:
        return self.queries

    def runs(self, problem: Problem) -> int:
        return self.restarts

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        return margin(logits, problem.y)

    def begin(self, problem: Problem, run: Tensor) -> State:
        key = problem.streams.keys(run).to(problem.x.device)
        start = _stripes if problem.threat.norm == "Linf" else _tiles
        x_t = start(problem, key)
        best = x_t.new_full((len(x_t),), -torch.inf)
        return SquareState(
            x_t,
            best_x=x_t.clone(),
            best=best,
            key=key,
            drawn=draw(key, torch.zeros_like(key), AHEAD),
            block=torch.zeros_like(key),
            has_point=torch.ones_like(key, dtype=torch.bool),
            kept=torch.full_like(best, KEPT),
            slope=torch.zeros_like(x_t) if self.forecast else x_t.new_empty(len(x_t), 0),
            slope_block=torch.full_like(key, -1),
            error=torch.full_like(best, torch.inf),
            squares=torch.zeros_like(best),
            counted=torch.zeros_like(best),
        )

    def look(self, problem: Problem, state: State) -> Seen:
        """One query of each image; later, when almost none is kept, many of them."""
        assert isinstance(state, SquareState)
        is_late = self._is_late(problem, state)
        if is_late.any() and not is_late.all():
            return self._look_at(problem, state, ~is_late)
        if is_late.all():
            forecast = self.forecast and gives_gradients(problem.model)
            return sprint(problem, state, self._table(problem), forecast=forecast)
        if not state.has_point.all():
            state.x_t = state.x_t.where(column(state.has_point), self._one(problem, state, -1))
        return super().look(problem, state)

    def _is_late(self, problem: Problem, state: SquareState) -> Tensor:
        """(N,) whether few queries are kept, and windows are small; never on an accelerator."""
        if state.x_t.device.type != "cpu":
            return torch.zeros_like(state.has_point)
        side = self._table(problem)[(state.step - 1).clamp(0, self.queries - 1)]
        return (state.step > EARLY) & (side <= SMALL * problem.x.shape[3])

    def _look_at(self, problem: Problem, state: SquareState, chosen: Tensor) -> Seen:
        """A query of the images that came later; the others wait, so that none changes its way."""
        part = state.select(chosen)
        seen = self.look(problem.select(chosen), part)
        logits = seen.logits.new_full((len(chosen), seen.logits.shape[1]), torch.nan)
        logits[chosen], loss = seen.logits, state.best.clone()
        loss[chosen] = seen.loss
        state.x_t = state.x_t.clone()
        state.x_t[chosen] = part.x_t
        state.step = state.step - (~chosen).long()  # the loop adds one
        return Seen(logits, loss, None)

    def _one(self, problem: Problem, state: SquareState, ahead: int = 0) -> Tensor:
        """(N, C, H, W) what each image's query tries, on top of the best point so far."""
        side, bits = self._sides(problem, state.step + ahead), _drawn(state, ahead)
        if is_patch(problem, side):
            patches = draw_patches(problem, int(side[0]), bits[:, None])
            return patches.on(problem, state.best_x)[:, 0]
        return _proposed(problem, state.best_x, side, bits)

    def _sides(self, problem: Problem, step: Tensor) -> Tensor:
        """(N,) the sides of the windows of each image's query."""
        return self._table(problem).to(step.device)[step.clamp_max(self.queries - 1)]

    def _table(self, problem: Problem) -> Tensor:
        height, width = problem.x.shape[2:]
        return sides(self.queries, self.share, height, width, problem.threat.norm)

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert isinstance(state, SquareState)
        if some(better := seen.loss > state.best):
            put(state.best_x, better, state.x_t)
            state.best = seen.loss.where(better, state.best)
        is_single = not bool(self._is_late(problem, state).all())
        state.has_point = torch.full_like(better, is_single)
        return self._one(problem, state) if is_single else state.x_t


def is_patch(problem: Problem, side: Tensor) -> bool:
    """Whether all windows have one small size, so that only their pixels need to be touched."""
    if side.device.type != "cpu":
        return False
    narrowest, widest = side.aminmax()
    return bool(narrowest == widest <= SMALL * problem.x.shape[3])


def _proposed(problem: Problem, best: Tensor, side: Tensor, bits: Tensor) -> Tensor:
    """The points that these queries try; two hashes hold all random numbers of a query."""
    if problem.threat.norm == "Linf":
        return _squares(problem, best, side, bits)
    return _moved_mass(problem, best, side, bits, mix(bits))


def _drawn(state: SquareState, ahead: int = 0) -> Tensor:
    """(N,) the bits of this query."""
    step = state.step + ahead
    block, place = step // AHEAD, step % AHEAD
    if some(begins := block != state.block):
        put(state.drawn, begins, draw(state.key, block * AHEAD, AHEAD))
        state.block = block
    return state.drawn.gather(1, place[:, None])[:, 0]


def _stripes(problem: Problem, key: Tensor) -> Tensor:
    """Vertical stripes of +-eps, a sign per channel and column."""
    x = problem.x
    channels, width = x.shape[1], x.shape[3]
    place = torch.arange(channels * width, device=x.device)
    signs = 2 * (shift(mix(key[:, None] + place), 7) & 1) - 1
    stripes = signs.to(x.dtype).view(len(x), channels, 1, width)
    return problem.project(x + problem.threat.eps * stripes)


def _squares(problem: Problem, best: Tensor, side: Tensor, bits: Tensor) -> Tensor:
    assert problem.bounds is not None
    low, high = problem.bounds
    up = ups_of(bits, best.shape[1]).to(low.dtype)[:, :, None, None]
    here = mask(*window(bits, side, best.shape), side).to(low.dtype)
    # Weights of 0 and 1: a choice, but many times faster on a processor than `where`.
    return torch.lerp(best, torch.lerp(low, high, up), here)


def _tiles(problem: Problem, key: Tensor) -> Tensor:
    """Patterns all over the image, each tile with its own sign and orientation."""
    x, norm = problem.x, problem.threat.norm
    channels, height, width = x.shape[1:]
    side = max(min(height, width) // 5, 2)
    delta = torch.zeros_like(x)
    bank = patterns(side, norm).to(x)[:, side]
    tiles_down, tiles_along = height // side, width // side
    down, along = (height - tiles_down * side) // 2, (width - tiles_along * side) // 2
    for tile in range(tiles_down * tiles_along):
        bits = mix(key + 1 + tile)
        shape = bank[shift(bits, 5) & 1][:, None]
        top, left = down + side * (tile // tiles_along), along + side * (tile % tiles_along)
        place = delta[:, :, top : top + side, left : left + side]
        place += shape * signs_of(bits, channels, x)
    return _on_border(problem, delta)


def _moved_mass(problem: Problem, best: Tensor, side: Tensor, bits: Tensor, more: Tensor) -> Tensor:
    """Takes the mass of two windows and puts it into the first, in a new shape."""
    x, norm = problem.x, problem.threat.norm
    order = 2 if norm == "L2" else 1
    channels = x.shape[1]
    delta = best - x
    rows, columns = window(bits, side, x.shape)
    here = mask(rows, columns, side).to(x.dtype)
    both = mask(*window(more, side, x.shape), side).to(x.dtype).maximum(here)
    mass = delta.square() if order == 2 else delta.abs()

    def norm_of(values: Tensor) -> Tensor:
        total = values.flatten(2).sum(2)[:, :, None, None]
        return total.sqrt() if order == 2 else total

    inner, taken = norm_of(mass * here), (mass * both).flatten(2).sum(2)[:, :, None, None]
    total = mass.flatten(1).sum(1).view(-1, 1, 1, 1)
    shape = _shape(norm, (rows, columns), side, shift(more, 40) & 1).to(x)
    new = torch.addcmul(delta / (inner + TINY), shape, signs_of(bits, channels, x)).mul_(here)
    size = norm_of(new.square() if order == 2 else new.abs()) + TINY
    share = budget(problem, total, taken) / size
    return _on_border(problem, torch.addcmul(delta * (1 - both), new, share))


def _shape(norm: Norm, window: tuple[Tensor, Tensor], side: Tensor, lying: Tensor) -> Tensor:
    """(N, 1, H, W) the pattern of each window, upright or lying; outside it is of no use."""
    rows, columns = window
    largest = int(side.max())
    bank = patterns(largest, norm).to(side.device)
    if side.device.type == "cpu" and bool((side == largest).all()):  # much the faster way
        (n, height), width = rows.shape, columns.shape[1]
        start = -rows[:, 0] * width - columns[:, 0]
        place = start[:, None] + footprint(largest, 1, height, width)
        found = torch.zeros(n, height * width).scatter_(1, place, bank[lying, largest].flatten(1))
        return found.view(n, 1, height, width)
    i, j = rows.clamp(0, largest - 1), columns.clamp(0, largest - 1)
    return bank[lying[:, None, None], side[:, None, None], i[:, :, None], j[:, None, :]][:, None]


def _on_border(problem: Problem, delta: Tensor) -> Tensor:
    """The point of this displacement: of length eps in L2, projected in L1."""
    x, eps = problem.x, problem.threat.eps
    if problem.threat.norm == "L1":
        return problem.project(x + delta, x.new_full((len(x),), INSIDE))
    length = delta.flatten(1).norm(dim=1) + TINY
    return (x + delta * column(eps / length)).clamp_(0, 1)
