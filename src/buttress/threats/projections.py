"""Euclidean projections onto an L2 or L1 ball, cut by the box [0, 1]."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_PROJECTION_ITERATIONS = 100  # they end by themselves after about ten
DEVICE_SYNC_INTERVAL = 4  # iterations between two checks of convergence, on an accelerator
MAX_SPARSE_FRACTION = 0.3  # of values that moved: more are faster all in one
TINY = 1e-12


def _split_displacement(x: Tensor, x_adv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Signs and sizes of the displacement, and the size that the box leaves of it, flattened.

    On CPUs a comparison that writes numbers is many times faster than one that writes
    truths, and a product than a choice: hence the arithmetic here and below.
    """
    delta = (x_adv - x).flatten(1)
    sign = delta.sign()
    size = delta.abs_()
    # The distance to the border that the step goes towards: 1 - x if it rises, x if it falls.
    distance_to_box = (0.5 - x.flatten(1)).mul_(sign).add_(0.5)
    return sign, size, distance_to_box.clamp_(0, 1).minimum(size)


def _apply_displacement(
    x: Tensor, sign: Tensor, lengths: Tensor, eps: Tensor, order: int
) -> Tensor:
    """``x`` moved by ``lengths``, with the last rounding taken off the length."""
    total = lengths.sum(1) if order == 1 else torch.linalg.vector_norm(lengths, dim=1)
    lengths = lengths * _length_factor(total, eps)
    return torch.addcmul(x.flatten(1), sign, lengths).clamp_(0, 1).view_as(x)


def _length_factor(total: Tensor, eps: Tensor) -> Tensor:
    """(N, 1) what brings lengths of this total into the ball: at most 1."""
    return (eps / total.double().clamp_min(TINY)[:, None]).clamp_max(1).to(total.dtype)


def _is_check_due(iteration: int, x: Tensor) -> bool:
    """Whether to check for convergence: not in every iteration on an accelerator, which waits."""
    return x.device.type == "cpu" or iteration % DEVICE_SYNC_INTERVAL == DEVICE_SYNC_INTERVAL - 1


def project_l2(x: Tensor, x_adv: Tensor, eps: Tensor) -> Tensor:
    r"""Nearest point of L2 ball ∩ box: each coordinate moves by min(t |d_i|, room_i).

    The multiplier of the ball condition scales the displacement d by one t in (0, 1], which solves
    sum_i min(t |d_i|, room_i)^2 = eps^2. Each round solves it as if the coordinates that are at
    their limit now stayed there; t only grows, so the last such set is the right one.
    """
    sign, size, room = _split_displacement(x, x_adv)
    square, limit = size.square(), room / size  # where nothing moves: not a number, never free
    room_square, radius = room.square(), eps[:, 0]
    room_square_sum = room_square.sum(1).double()
    t = (radius / square.sum(1).double().sqrt().clamp_min(TINY)).clamp_max(1)
    free = torch.empty_like(size)
    for iteration in range(MAX_PROJECTION_ITERATIONS):
        torch.gt(limit, t.to(size.dtype)[:, None], out=free)
        free_square_sum = torch.linalg.vecdot(square, free).double()
        fixed_square_sum = room_square_sum - torch.linalg.vecdot(room_square, free)
        next_t = (
            ((radius**2 - fixed_square_sum).clamp_min(0) / free_square_sum.clamp_min(TINY))
            .sqrt()
            .clamp_max(1)
        )
        next_t = next_t.maximum(t)
        if _is_check_due(iteration, x) and bool((next_t <= t * (1 + 1e-7)).all()):
            break
        t = next_t
    t = t.where(room_square_sum > radius**2, 1.0).to(size.dtype)
    return _apply_displacement(x, sign, (t[:, None] * size).minimum(room), eps, 2)


def project_l1(x: Tensor, x_adv: Tensor, eps: Tensor) -> Tensor:
    r"""Nearest point of L1 ball ∩ box: each coordinate moves by min(room_i, max(|d_i| - lam, 0)).

    The total falls with lam in straight pieces, so a Newton step from the right piece is exact;
    a step that leaves the bracket is replaced by halving it. On a CPU, where few coordinates moved,
    nothing is computed for the others; the result has the same bits.
    """
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        moved = np.flatnonzero(x_adv.numpy() != x.numpy())
        if len(moved) <= MAX_SPARSE_FRACTION * x.numel():
            places = torch.from_numpy(moved)
            values = x_adv.flatten().index_select(0, places)
            if values.isfinite().all():  # else no coordinate of the sample is finite
                return _project_moved_l1(x, values, eps, places)
    sign, size, room = _split_displacement(x, x_adv)
    lengths = DenseLengths(size, room)
    _solve_l1(lengths, eps[:, 0], x.dtype)
    return _apply_displacement(x, sign, lengths.lengths, eps, 1)


def _project_moved_l1(x: Tensor, values: Tensor, eps: Tensor, places: Tensor) -> Tensor:
    """`project_l1` of ``x`` with other ``values`` (M,) in few ``places`` of the flat batch."""
    flat = x.flatten()
    point = flat.index_select(0, places)
    sign, size, room = _split_displacement(point[None], values[None])
    lengths = SparseLengths(size[0], room[0], places, x.flatten(1).shape)
    _solve_l1(lengths, eps[:, 0], x.dtype)
    factor = _length_factor(lengths.dense.sum(1), eps)[:, 0].numpy()
    scaled = torch.from_numpy(lengths.lengths * lengths.of_entries(factor))
    point = torch.addcmul(point, sign[0], scaled).clamp_(0, 1)
    return flat.clamp(0, 1).index_copy_(0, places, point).view_as(x)


class L1Lengths(Protocol):
    """The moves min(room_i, max(size_i - lam, 0)) of the coordinates of N samples.

    Numbers per sample are float64, and NumPy arrays on a CPU, where that takes a fraction of the
    time.
    """

    def largest(self) -> Any:
        """(N,) the largest size of each sample."""

    def total(self) -> Any:
        """(N,) the sums of the moves, for lam = 0 until `shorten` was called."""

    def slope(self, lam: Any) -> Any:
        """(N,) how many moves become shorter if the ``lam`` (N,) of the last call grows."""

    def shorten(self, lam: Any) -> None:
        """Compute the moves for these ``lam`` (N,)."""


class DenseLengths:
    """`L1Lengths` with a value for every coordinate."""

    def __init__(self, size: Tensor, room: Tensor) -> None:
        self.size, self.lengths, self.room = size, room, room
        self.top = size - room  # size - lam is within its room from lam = top on
        self.buffer, self.above = torch.empty_like(size), torch.empty_like(size)

    def largest(self) -> Any:
        return self._per_sample(self.size.amax(1) if self.size.shape[1] else self.size.sum(1))

    def total(self) -> Any:
        return self._per_sample(self.lengths.sum(1))

    def slope(self, lam: Any) -> Any:
        column = self._column(lam)
        slope = self._per_sample(torch.gt(self.size, column, out=self.above).sum(1))
        return slope - self._per_sample(torch.gt(self.top, column, out=self.above).sum(1))

    def shorten(self, lam: Any) -> None:
        lengths = torch.sub(self.size, self._column(lam), out=self.buffer).clamp_min_(0)
        self.lengths = torch.minimum(lengths, self.room, out=self.buffer)

    def _per_sample(self, values: Tensor) -> Any:
        return values.double().numpy() if values.device.type == "cpu" else values.double()

    def _column(self, lam: Any) -> Tensor:
        values = torch.from_numpy(lam) if self.size.device.type == "cpu" else lam
        return values.to(self.size.dtype)[:, None]


class SparseLengths:
    """`L1Lengths` of the few coordinates that moved, on a CPU.

    ``dense`` (N, d) has the moves of all coordinates: it is summed as ever, so that no bit changes.
    """

    def __init__(self, size: Tensor, room: Tensor, places: Tensor, shape: torch.Size) -> None:
        self.size, self.room, self.top = size.numpy(), room.numpy(), (size - room).numpy()
        self.lengths, self.places = self.room.copy(), places
        self.dense = torch.zeros(shape, dtype=size.dtype)
        bounds = np.searchsorted(places.numpy(), np.arange(shape[0] + 1) * shape[1])
        self.counts = np.diff(bounds)
        self.has_moved = self.counts > 0
        self.starts = bounds[:-1][self.has_moved]
        self.lam = np.zeros_like(self.size)
        self._fill_dense()

    def largest(self) -> NDArray[np.float64]:
        return self._reduce(np.maximum, self.size)

    def total(self) -> NDArray[np.float64]:
        return self.dense.sum(1).double().numpy()

    def slope(self, lam: Any) -> NDArray[np.float64]:
        changes = (self.size > self.lam).view(np.int8) - (self.top > self.lam).view(np.int8)
        return self._reduce(np.add, changes.astype(np.int32))

    def shorten(self, lam: Any) -> None:
        self.lam = self.of_entries(lam.astype(self.size.dtype))
        np.subtract(self.size, self.lam, out=self.lengths)
        np.maximum(self.lengths, 0, out=self.lengths)
        np.minimum(self.lengths, self.room, out=self.lengths)
        self._fill_dense()

    def of_entries(self, values: NDArray[Any]) -> NDArray[Any]:
        """The value of its sample for each coordinate that moved."""
        return np.repeat(values, self.counts)

    def _reduce(self, function: np.ufunc, values: NDArray[Any]) -> NDArray[np.float64]:
        reduced = np.zeros(len(self.counts))
        if len(self.starts):
            reduced[self.has_moved] = function.reduceat(values, self.starts)
        return reduced

    def _fill_dense(self) -> None:
        self.dense.view(-1).scatter_(0, self.places, torch.from_numpy(self.lengths))


def _solve_l1(lengths: L1Lengths, radius: Tensor, dtype: torch.dtype) -> None:
    """Shorten the moves until their totals are at most ``radius`` (N,) float64."""
    is_cpu = radius.device.type == "cpu"
    relative_tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    xp: Any = np if is_cpu else torch
    eps, high = (radius.numpy() if is_cpu else radius), lengths.largest()
    tolerance = eps * relative_tolerance
    lam = low = xp.zeros_like(high)
    with np.errstate(invalid="ignore"):  # of points that are not finite
        for iteration in range(MAX_PROJECTION_ITERATIONS):
            excess = lengths.total() - eps
            has_converged = (
                (abs(excess) <= tolerance) | ((excess < 0) & (lam == 0)) | (high - low <= TINY)
            )
            if _is_check_due(iteration, radius) and has_converged.all():
                return
            low, high = xp.where(excess > 0, lam, low), xp.where(excess < 0, lam, high)
            slope = lengths.slope(lam)
            newton = lam + excess / xp.where(slope > 1, slope, 1.0)
            is_inside = (slope > 0) & (newton > low) & (newton < high)
            next_lam = xp.where(is_inside, newton, (low + high) / 2)
            lam = xp.where(has_converged, lam, next_lam)
            lengths.shorten(lam)
