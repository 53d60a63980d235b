"""Square attack (Andriushchenko et al., arXiv:1912.00049): random search, no gradients.

Constants follow the reference implementation in AutoAttack. Windows and signs are drawn for each
sample from its own stream, where the reference shares them in the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, State, at_least_one, column, put, some
from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem, Seen
from buttress.errors import UserError
from buttress.streams import mix, shift
from buttress.threat import TINY, Norm

# After these queries the share of the image is halved.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
INSIDE = 1 - 1e-6  # of eps: the L1 ball that points are projected to
AHEAD = 64  # queries whose random numbers are drawn at once
SMALL = 0.4  # of the image's side: smaller windows are written pixel by pixel
EARLY = 200  # queries that are tried one by one, because many of them are kept
MOST = 8  # queries of an image that are tried at once, where few images are left


@dataclass
class SquareState(State):
    """Per run: the best point so far, its margin, and the key of its random numbers."""

    best_x: Tensor
    best: Tensor  # (N,)
    key: Tensor  # (N,) int64
    drawn: Tensor  # (N, AHEAD) int64: the random bits of a block of queries
    block: Tensor  # (N,) int64: which block that is
    has_point: Tensor  # (N,) x_t is the point to look at; else it is made when many are looked at


@ATTACKS.register("square", paper="arXiv:1912.00049", tags=("black_box", "iterative"))
@dataclass(frozen=True)
class Square(Attack):
    r"""Random search: a square of the perturbation is replaced, and kept if the margin grew.

    The square covers a share p of the image: 0.8 at first, halved after 10, 50, 200, 500, 1000,
    2000 and 4000 queries. Linf: vertical stripes of :math:`\pm\epsilon` at first, then squares of
    :math:`\pm\epsilon`, one sign per channel. L2 and L1: mass is moved from one window to another,
    shaped as two opposite bumps.

    Departures: windows and signs are drawn per sample; a tie of logits is no success; images that
    are not square are tiled over both sides.
    """

    needs_grad: ClassVar[bool] = False
    queries: int = 5000
    restarts: int = 1
    share: float = 0.8

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
        return SquareState(
            x_t,
            best_x=x_t.clone(),
            best=x_t.new_full((len(x_t),), -torch.inf),
            key=key,
            drawn=_draw(key, torch.zeros_like(key), AHEAD),
            block=torch.zeros_like(key),
            has_point=torch.ones_like(key, dtype=torch.bool),
        )

    def look(self, problem: Problem, state: State) -> Seen:
        """One query of each image, or several where few images are left.

        Almost no query is kept once windows are small. So the next ones are tried in the same pass
        as if the first were not; of each image the first that is better counts, and those after it
        will be tried again on top of it. What is found is what queries one by one find.
        """
        assert isinstance(state, SquareState)
        if (count := self._at_once(problem, state)) == 1:
            if not state.has_point.all():
                state.x_t = state.x_t.where(column(state.has_point), self._one(problem, state, -1))
            return super().look(problem, state)
        tried = self._many(problem, state, count).flatten(0, 1)
        rows = problem.rows_of().repeat_interleave(count)
        flat = problem.rows_only(rows).look(tried, lambda z: margin(z, problem.y[rows]), grad=False)
        loss = flat.loss.view(-1, count)
        is_better = loss > state.best[:, None]
        first = is_better.int().argmax(1).where(is_better.any(1), count - 1)
        chosen = problem.rows_of() * count + first
        state.x_t, state.step = tried[chosen], state.step + first
        return Seen(flat.logits[chosen], flat.loss[chosen], None)

    def _at_once(self, problem: Problem, state: SquareState) -> int:
        """How many queries of each image fit into one pass."""
        count = min(MOST, problem.full // max(1, len(state.x_t)))
        if count <= 1 or state.x_t.device.type != "cpu":
            return 1
        is_early, is_late = state.step < EARLY, state.step + count > self.queries
        return 1 if bool((is_early | is_late).any()) else count

    def _one(self, problem: Problem, state: SquareState, ahead: int = 0) -> Tensor:
        """(N, C, H, W) what each image's query tries, on top of the best point so far."""
        side, bits = self._sides(problem, state.step + ahead), _drawn(state, ahead)
        if is_patch(problem, side):
            return _patched(problem, state.best_x, int(side[0, 0]), bits[:, None])[:, 0]
        return _proposed(problem, state.best_x, side[:, 0], bits)

    def _many(self, problem: Problem, state: SquareState, count: int) -> Tensor:
        """(N, count, C, H, W) the same for this query and the ones after it."""
        bits = _draw(state.key, state.step - 1, count)
        side = self._sides(problem, state.step - 1, count)
        if is_patch(problem, side):
            return _patched(problem, state.best_x, int(side[0, 0]), bits)
        rows = problem.rows_of().repeat_interleave(count)
        new = _proposed(problem.select(rows), state.best_x[rows], side.flatten(), bits.flatten())
        return new.view(-1, count, *new.shape[1:])

    def _sides(self, problem: Problem, step: Tensor, count: int = 1) -> Tensor:
        """(N, count) the sides of the windows of each image's query and of those after it."""
        height, width = problem.x.shape[2:]
        table = sides(self.queries, self.share, height, width, problem.threat.norm)
        steps = step[:, None] + torch.arange(count, device=step.device)
        return table.to(steps.device)[steps.clamp_max(self.queries - 1)]

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert isinstance(state, SquareState)
        if some(better := seen.loss > state.best):
            put(state.best_x, better, state.x_t)
            state.best = seen.loss.where(better, state.best)
        is_single = self._at_once(problem, state) == 1
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


def _draw(key: Tensor, step: Tensor, count: int) -> Tensor:
    """(N, count) the bits of a query and of those after it."""
    steps = step[:, None] + torch.arange(count, device=step.device)
    return mix(key[:, None] ^ mix(2 * steps + 1))


def _drawn(state: SquareState, ahead: int = 0) -> Tensor:
    """(N,) the bits of this query."""
    step = state.step + ahead
    block, place = step // AHEAD, step % AHEAD
    if some(begins := block != state.block):
        put(state.drawn, begins, _draw(state.key, block * AHEAD, AHEAD))
        state.block = block
    return state.drawn.gather(1, place[:, None])[:, 0]


@lru_cache
def sides(queries: int, share: float, height: int, width: int, norm: Norm) -> Tensor:
    """(queries,) the side of the window at each query."""
    found = []
    for query in range(queries):
        p = share / 2 ** sum(query > h for h in HALVINGS)
        side = round(math.sqrt(p * height * width))
        if norm == "Linf":
            side = max(side, 1)
        else:
            side = max(side, 3)
            side += 1 - side % 2
        found.append(min(side, height, width))
    return torch.tensor(found)


def _position(bits: Tensor, side: Tensor, length: int) -> Tensor:
    """(N,) where a window begins: as in the reference the last place is never drawn."""
    return bits % (length - side).clamp_min(1)


def _corner(bits: Tensor, side: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The first row and column of a window drawn from 32 bits."""
    height, width = shape[-2:]
    return (
        _position(bits & 0xFFFF, side, height),
        _position((bits >> 16) & 0xFFFF, side, width),
    )


def _window(bits: Tensor, side: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Rows and columns relative to a window drawn from 32 bits: (N, H) and (N, W)."""
    height, width = shape[2:]
    top, left = _corner(bits, side, shape)
    device = bits.device
    rows = torch.arange(height, device=device) - top[:, None]
    return rows, torch.arange(width, device=device) - left[:, None]


def _mask(rows: Tensor, columns: Tensor, side: Tensor) -> Tensor:
    """(N, 1, H, W) the window itself."""
    down = (rows >= 0) & (rows < side[:, None])
    along = (columns >= 0) & (columns < side[:, None])
    return (down[:, :, None] & along[:, None, :])[:, None]


def _signs(bits: Tensor, channels: int, like: Tensor) -> Tensor:
    """(N, C, 1, 1) random signs, from the upper half of 64 bits, and more where 32 do not do."""
    return (2 * _ups(bits, channels) - 1).to(like.dtype)[:, :, None, None]


def _ups(bits: Tensor, channels: int) -> Tensor:
    """(N, C) random zeros and ones."""
    rows = []
    for first in range(0, channels, 32):
        bits = mix(bits) if first else bits
        count = min(32, channels - first)
        rows.append((bits[:, None] >> torch.arange(32, 32 + count, device=bits.device)) & 1)
    return torch.cat(rows, 1)


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
    up = _ups(bits, best.shape[1]).to(low.dtype)[:, :, None, None]
    window = _mask(*_window(bits, side, best.shape), side).to(low.dtype)
    # Weights of 0 and 1: a choice, but many times faster on a processor than `where`.
    return torch.lerp(best, torch.lerp(low, high, up), window)


def _patched(problem: Problem, best: Tensor, side: int, bits: Tensor) -> Tensor:
    """The points of queries with small windows of one size: only their pixels are looked at.

    Several queries (N, K) of bits give (N, K, C, H, W).
    """
    filled = _corner_patches if problem.threat.norm == "Linf" else _mass_patches
    return filled(problem, best, side, bits).view(*bits.shape, *best.shape[1:])


def _places(bits: Tensor, side: int, shape: torch.Size) -> Tensor:
    """(N, K, C * side * side) the pixels of each window, as places in the image."""
    top, left = _corner(bits, torch.tensor(side), shape)
    return (top * shape[-1] + left)[:, :, None] + _block(side, *shape[1:])


def _taken(values: Tensor, place: Tensor) -> Tensor:
    """(N, K, C, pixels) the values (N, C, H, W) at the pixels of windows."""
    n, count = place.shape[:2]
    found = values.flatten(1).gather(1, place.view(n, -1))
    return found.view(n, count, values.shape[1], -1)


def _corner_patches(problem: Problem, best: Tensor, side: int, bits: Tensor) -> Tensor:
    """What `_squares` gives."""
    assert problem.bounds is not None
    n, channels = best.shape[:2]
    place = _places(bits, side, best.shape)
    low, high = (_taken(bound, place) for bound in problem.bounds)
    up = _ups(bits.flatten(), channels).to(best.dtype).view(n, -1, channels, 1)
    new = best.view(n, 1, -1).repeat(1, bits.shape[1], 1)
    return new.scatter_(2, place, torch.lerp(low, high, up).flatten(2))


def _mass_patches(problem: Problem, best: Tensor, side: int, bits: Tensor) -> Tensor:
    """What `_moved_mass` gives, but for rounding."""
    x, norm, more = problem.x, problem.threat.norm, mix(bits)
    is_l2, (n, channels) = norm == "L2", best.shape[:2]
    here, there = (_places(b, side, best.shape) for b in (bits, more))
    delta = best - x
    inside, outside = _taken(delta, here), _taken(delta, there)
    outside = outside * ~_overlap(bits, more, side, best.shape)

    def mass(values: Tensor) -> Tensor:
        return (values.square() if is_l2 else values.abs()).sum(-1, keepdim=True)

    inner, total = mass(inside), mass(delta.flatten(1)).view(n, 1, 1, 1)
    lying = shift(more, 40) & 1
    shape = patterns(side, norm)[lying, side].to(x).flatten(2)[:, :, None]
    signs = _signs(bits.flatten(), channels, x).view(n, -1, channels, 1)
    new = torch.addcmul(inside / ((inner.sqrt() if is_l2 else inner) + TINY), shape, signs)
    share = budget(problem, total, inner + mass(outside))
    new.mul_(share / ((mass(new).sqrt() if is_l2 else mass(new)) + TINY))
    moved = delta.view(n, 1, -1).repeat(1, bits.shape[1], 1)
    moved.scatter_(2, there, 0.0).scatter_(2, here, new.flatten(2))
    if problem.threat.norm == "L1":
        copies = x.repeat_interleave(bits.shape[1], 0)
        scale = x.new_full((len(copies),), INSIDE)
        return problem.threat.project(copies, copies + moved.view_as(copies), scale)
    length = moved.norm(dim=2, keepdim=True) + TINY
    return moved.mul_(problem.threat.eps / length).add_(x.view(n, 1, -1)).clamp_(0, 1)


def _overlap(bits: Tensor, more: Tensor, side: int, shape: torch.Size) -> Tensor:
    """(N, K, 1, pixels) which pixels of the second window are in the first too."""
    across = torch.arange(side)
    first, second = (_corner(b, torch.tensor(side), shape) for b in (bits, more))
    down, along = (
        ((b - a)[:, :, None] + across >= 0) & ((b - a)[:, :, None] + across < side)
        for a, b in zip(first, second, strict=True)
    )
    return (down[..., :, None] & along[..., None, :]).flatten(2)[:, :, None]


def budget(problem: Problem, total: Tensor, taken: Tensor) -> Tensor:
    """The length that the new values of each channel may have: what was taken, and what is free.

    Of all values and of those taken the sums of squares are given in L2, of sizes in L1.
    """
    eps, channels = problem.threat.eps, problem.x.shape[1]
    if problem.threat.norm == "L2":
        return ((eps**2 - total).clamp_min(0) / channels + taken).sqrt()
    return channels * ((eps - total).clamp_min(0) / channels + taken)


@lru_cache
def _block(side: int, channels: int, height: int, width: int) -> Tensor:
    """(channels * side * side,) the pixels of a window at the origin, as places in the image."""
    across = torch.arange(side)
    plane = (across[:, None] * width + across).flatten()
    return (torch.arange(channels)[:, None] * (height * width) + plane).flatten()


@lru_cache
def bump(height: int, width: int, power: int) -> Tensor:
    """A pyramid of nested squares around the middle: the k-th adds 1 / (k + 1)^power."""
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    ring = rows.maximum(columns)
    heights = torch.zeros(height, width, dtype=torch.float64)
    for k in range(max(height // 2, width // 2) + 1):
        heights += (ring <= k) / float(k + 1) ** power
    return heights


@lru_cache
def pattern(side: int, norm: Norm) -> Tensor:
    """Two opposite bumps, one above the other, of unit norm."""
    order, power = (2, 2) if norm == "L2" else (1, 4)
    halves = [bump(rows, side, power) for rows in (side // 2, side - side // 2)]
    halves = [h / max(float(h.norm(order)), TINY) for h in halves]
    both = torch.cat([halves[0], -halves[1]])
    return both / both.norm(order)


@lru_cache
def patterns(largest: int, norm: Norm) -> Tensor:
    """(2, largest + 1, largest, largest) patterns of all sides, upright and lying, padded."""
    bank = torch.zeros(2, largest + 1, largest, largest)
    for side in range(2, largest + 1):
        bank[0, side, :side, :side] = pattern(side, norm)
        bank[1, side, :side, :side] = pattern(side, norm).T
    return bank


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
        place += shape * _signs(bits, channels, x)
    return _on_border(problem, delta)


def _moved_mass(problem: Problem, best: Tensor, side: Tensor, bits: Tensor, more: Tensor) -> Tensor:
    """Takes the mass of two windows and puts it into the first, in a new shape."""
    x, norm = problem.x, problem.threat.norm
    order = 2 if norm == "L2" else 1
    channels = x.shape[1]
    delta = best - x
    rows, columns = _window(bits, side, x.shape)
    here = _mask(rows, columns, side).to(x.dtype)
    both = _mask(*_window(more, side, x.shape), side).to(x.dtype).maximum(here)
    mass = delta.square() if order == 2 else delta.abs()

    def norm_of(values: Tensor) -> Tensor:
        total = values.flatten(2).sum(2)[:, :, None, None]
        return total.sqrt() if order == 2 else total

    inner, taken = norm_of(mass * here), (mass * both).flatten(2).sum(2)[:, :, None, None]
    total = mass.flatten(1).sum(1).view(-1, 1, 1, 1)
    shape = _shape(norm, (rows, columns), side, shift(more, 40) & 1).to(x)
    new = torch.addcmul(delta / (inner + TINY), shape, _signs(bits, channels, x)).mul_(here)
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
        place = start[:, None] + _block(largest, 1, height, width)
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
