"""Patches: a square of the image may become anything in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from buttress.errors import UserError
from buttress.threats.core import THREATS, SearchSet, Space
from buttress.threats.sparse import MEAN_STEP, draw_corners, scale_to_unit_mean

if TYPE_CHECKING:
    from torch import Tensor

    from buttress.system.rng import SampleRNG

USUAL_SHARE = 5 / 32  # of the side of a small image; 50 of 224 pixels on large ones


@THREATS.register("patch", paper="arXiv:2006.12834", tags=("sparse",), attack="patch_pgd")
@dataclass(frozen=True, repr=False)
class Patch(SearchSet):
    """A square of a side anywhere, or with its upper left pixel at given places.

    ``patch:5`` is anywhere, ``patch:5,0,0,13,13`` in the corner or at row 13 and column 13.
    """

    side: int
    places: tuple[tuple[int, int], ...] = ()  # row and column; anywhere if empty

    def __post_init__(self) -> None:
        if self.side < 0:
            raise UserError(f"`patch >= 0` must hold, but got patch:{self.side}")

    @classmethod
    def from_budget(cls, kind: str, budget: str) -> Patch:
        numbers = [part.strip() for part in budget.split(",")]
        if not all(n.isdigit() for n in numbers) or len(numbers) % 2 == 0:
            raise UserError(
                "a patch is written patch:SIDE, or patch:SIDE,ROW,COLUMN for a given place, in "
                f"whole pixels, but got patch:{budget}"
            )
        side, *places = map(int, numbers)
        return cls(side, tuple(zip(places[::2], places[1::2], strict=True)))

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "50" if size > 64 else f"{max(1, round(USUAL_SHARE * size))}"

    @property
    def kind(self) -> str:
        return "patch"

    @property
    def budget(self) -> str:
        return ",".join(map(str, (self.side, *(n for place in self.places for n in place))))

    @property
    def eps(self) -> float:  # type: ignore[override]
        return float(self.side)

    @property
    def space(self) -> Space:
        return "patch"

    @property
    def radius(self) -> float:
        return MEAN_STEP

    def scaled(self, factor: float) -> Patch:
        return replace(self, side=round(self.side * factor))

    def describe(self) -> str:
        where = "at given places" if self.places else "anywhere"
        return f"a square of {self.side} x {self.side} pixels {where} may change to anything"

    def perturbation_size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N,) the side of the smallest square that holds every changed pixel."""
        import torch

        is_changed = (x_adv != x).any(1)

        def extent(lines: Tensor) -> Tensor:
            positions = torch.arange(lines.shape[1], device=x.device).expand_as(lines)
            last = positions.masked_fill(~lines, -1).amax(1)
            return last - positions.masked_fill(~lines, lines.shape[1]).amin(1).minimum(last) + 1

        size = extent(is_changed.any(2)).maximum(extent(is_changed.any(1)))
        return size.masked_fill(~is_changed.flatten(1).any(1), 0).double()

    def excess(self, x: Tensor, x_adv: Tensor, points: Tensor | None = None) -> Tensor:
        if not self.places:
            return (self.perturbation_size(x, x_adv) - self.side).clamp_min(0)
        is_changed = (x_adv != x).any(1, keepdim=True).to(x.dtype)
        total, inside = is_changed.flatten(1).sum(1), self.sum_windows(is_changed)
        return (total - inside.amax(1)).double()

    def window_side(self, x: Tensor) -> int:
        """The side, which must not be larger than that of the images."""
        if self.side > min(x.shape[2:]):
            raise UserError(
                f"a patch must be at most as large as the image, {min(x.shape[2:])} pixels here, "
                f"but got {self}"
            )
        return self.side

    def corners(self, x: Tensor) -> Tensor:
        """(P, 2) the rows and columns of the upper left pixels that are allowed."""
        import torch

        side, (height, width) = max(1, self.window_side(x)), x.shape[2:]
        if not self.places:
            rows, columns = height - side + 1, width - side + 1
            return torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(x.device)
        for row, column in self.places:
            if row + side > height or column + side > width:
                raise UserError(
                    f"a patch of side {side} at row {row} and column {column} must lie inside the "
                    f"image, but it has {height} x {width} pixels"
                )
        return torch.tensor(self.places, device=x.device)

    def sum_windows(self, values: Tensor) -> Tensor:
        """(N, P) the sums of values (N, 1, H, W) over the square at each allowed place."""
        from torch.nn import functional as F

        corners, side = self.corners(values), max(1, self.window_side(values))
        sums = F.avg_pool2d(values, side, stride=1, divisor_override=1)[:, 0]
        return sums[:, corners[:, 0], corners[:, 1]]

    def mask_at(self, x: Tensor, place: Tensor) -> Tensor:
        """(N, 1, H, W) the squares at places (N,), numbers of rows of `corners`."""
        import torch

        top, left = self.corners(x)[place].split(1, 1)
        side, (height, width) = self.window_side(x), x.shape[2:]
        rows = torch.arange(height, device=x.device) - top
        columns = torch.arange(width, device=x.device) - left
        in_rows, in_columns = ((o >= 0) & (o < side) for o in (rows, columns))
        return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]

    def best_place(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N,) the place of the member nearest to ``x_adv``."""
        delta, outside = x_adv - x, x_adv - x_adv.clamp(0, 1)
        gain = (delta.square() - outside.square()).sum(1, keepdim=True)
        return self.sum_windows(gain).argmax(1)

    def project(self, x: Tensor, x_adv: Tensor, scale: Tensor | None = None) -> Tensor:
        """The nearest member: the square whose change brings most, clipped to [0, 1]."""
        return x_adv.clamp(0, 1).where(self.mask_at(x, self.best_place(x, x_adv)), x)

    def step_direction(self, x_t: Tensor, grad: Tensor) -> Tensor:
        """The gradient, scaled so that the mean of its absolute values is one."""
        return scale_to_unit_mean(grad)

    def draw_place(self, x: Tensor, rng: SampleRNG, draw: int | Tensor) -> Tensor:
        """(N,) a random allowed place."""
        places = replace(rng, purpose=rng.purpose + "/place")
        uniform = places.draw_uniform(x.new_empty(len(x), 1), draw)[:, 0]
        count = len(self.corners(x))
        return (uniform * count).long().clamp_max(count - 1)

    def random_start(self, x: Tensor, rng: SampleRNG, restart: int | Tensor = 0) -> Tensor:
        """A random place with random values."""
        return rng.draw_uniform(x, restart).where(
            self.mask_at(x, self.draw_place(x, rng, restart)), x
        )

    def random_neighbor(
        self, x: Tensor, best: Tensor, fraction: Tensor, rng: SampleRNG, draw: Tensor
    ) -> Tensor:
        """The square at a near place in one draw, with a part in one new color in the next."""
        import torch

        corners, place = self.corners(x), self.best_place(x, best)
        side, target = self.window_side(x), self.draw_place(x, rng, draw)
        # The nearest allowed place to a fraction of the way to a random one.
        origin, goal = (corners[p].double() for p in (place, target))
        aim = torch.lerp(origin, goal, fraction[:, None].double())
        nearest = (corners - aim[:, None].round()).abs().sum(2)
        moved = nearest.masked_fill(corners.eq(corners[place][:, None]).all(2), 1 << 30).argmin(1)
        place_new = moved.where(draw % 2 == 0, place) if len(corners) > 1 else place
        content = gather_square(best, corners[place], side)
        part = replace(rng, purpose=rng.purpose + "/part")
        top, left = part.draw_uniform(x.new_empty(len(x), 2), draw).split(1, 1)
        part_side = (fraction.sqrt() * side).round().clamp(1, side)[:, None]

        def covers(start: Tensor) -> Tensor:
            offset = torch.arange(side, device=x.device) - (start * (side - part_side + 1)).floor()
            return (offset >= 0) & (offset < part_side)

        is_part = (covers(top)[:, :, None] & covers(left)[:, None, :])[:, None]
        color = draw_corners(x[:, :, :1, :1], rng, draw)
        is_recolored = is_part & (place_new == place).view(-1, 1, 1, 1)
        content = torch.where(is_recolored, color, content)
        return paste_square(x, corners[place_new], content)


def _square_index(corners: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample, row and column of every pixel of a square: each (N, side, side)."""
    import torch

    offsets = torch.arange(side, device=corners.device)
    samples = torch.arange(len(corners), device=corners.device)[:, None, None]
    rows, columns = corners[:, :1] + offsets, corners[:, 1:] + offsets
    return samples, rows[:, :, None], columns[:, None, :]


def gather_square(x: Tensor, corners: Tensor, side: int) -> Tensor:
    """(N, C, side, side) the squares of images with their upper left pixels at ``corners``."""
    samples, rows, columns = _square_index(corners, side)
    return x[samples, :, rows, columns].permute(0, 3, 1, 2)


def paste_square(x: Tensor, corners: Tensor, content: Tensor) -> Tensor:
    """The images with ``content`` in their squares."""
    samples, rows, columns = _square_index(corners, content.shape[2])
    pasted = x.clone()
    pasted[samples, :, rows, columns] = content.permute(0, 2, 3, 1)
    return pasted
