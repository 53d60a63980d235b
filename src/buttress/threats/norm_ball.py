"""Threat models as norm balls around an image, intersected with the box [0, 1]."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from buttress.errors import UserError
from buttress.threats.core import THREATS, SearchSet, Threat

if TYPE_CHECKING:
    from torch import Tensor

    from buttress.system.rng import SampleRNG

Norm = Literal["Linf", "L2", "L1"]
NORMS: tuple[Norm, ...] = ("Linf", "L2", "L1")
TINY = 1e-12

# Exceeding eps by this much (relative, plus the rounding of each pixel) is rounding, not an attack.
TOLERANCE = 1e-5
PIXEL_ROUNDING = 2.0**-23


def find_norm(text: str) -> Norm | None:
    """``linf``, ``inf``, ``l_inf``, ``L∞`` ... -> ``Linf``; None for what is no norm."""
    normalized = re.sub(r"[\s_\-]", "", str(text)).lower().replace("∞", "inf").removeprefix("l")
    norm = {"inf": "Linf", "infinity": "Linf", "infty": "Linf", "2": "L2", "1": "L1"}.get(
        normalized
    )
    return cast("Norm | None", norm)


def parse_norm(text: str) -> Norm:
    """The same; raises for what is no norm."""
    if (norm := find_norm(text)) is None:
        raise UserError(f"the norm must be one of {', '.join(NORMS)}, but got {text!r}")
    return norm


def parse_eps(value: str | float) -> float:
    """``8/255`` or a number -> a float."""
    try:
        numerator, _, denominator = str(value).partition("/")
        eps = float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError):
        raise UserError(
            f"eps must be a number or a fraction like 8/255, but got {value!r}"
        ) from None
    if not eps >= 0 or math.isinf(eps):
        raise UserError(f"`eps >= 0` must hold and eps must be finite, but got eps={value}")
    return eps


@THREATS.register("L1", paper="arXiv:2103.01208", tags=("norm",))
@THREATS.register("L2", tags=("norm",))
@THREATS.register("Linf", paper="arXiv:1412.6572", tags=("norm",))
@dataclass(frozen=True, repr=False)
class NormBall(SearchSet):
    """Perturbations of at most ``eps`` in a norm, with images kept in [0, 1]."""

    norm: Norm
    eps: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", parse_norm(self.norm))
        object.__setattr__(self, "eps", parse_eps(self.eps))
        if self.norm == "Linf" and self.eps > 1:
            raise UserError(
                "eps is on the [0, 1] scale of the images, so Linf needs `eps <= 1`, but got "
                f"{self.eps:g}; write {self.eps:g}/255 if eps is in 8-bit pixel values"
            )

    @staticmethod
    def parse(text: str | Threat) -> NormBall:
        """Parse a norm ball such as ``Linf:8/255``; raises for other threat models."""
        threat = Threat.parse(text)
        if not isinstance(threat, NormBall):
            raise UserError(
                f"the threat model must be a norm ball, like Linf:8/255, but got {text}"
            )
        return threat

    @classmethod
    def from_budget(cls, kind: str, budget: str) -> NormBall:
        return cls(parse_norm(kind), parse_eps(budget))

    @property
    def kind(self) -> str:
        return self.norm

    @property
    def budget(self) -> str:
        return format_eps(self.eps) if self.norm == "Linf" else f"{self.eps:.12g}"

    @property
    def space(self) -> Norm:
        return self.norm

    @property
    def radius(self) -> float:
        return self.eps

    def describe(self) -> str:
        size = f"{self.eps:.4g}"
        if self.norm == "Linf":
            levels = f"{self.eps * 255:.3g}"
            return f"each pixel may change by at most {size} ({levels}/255)"
        return f"the perturbation may have an {self.norm} norm of at most {size}"

    def scaled(self, factor: float) -> NormBall:
        return NormBall(self.norm, self.eps * factor)

    def perturbation_size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N,) distances in this norm, summed in float64."""
        return self.norm_of((x_adv - x).double())

    def norm_of(self, delta: Tensor) -> Tensor:
        """(N,) norms of displacements, in their own precision."""
        import torch

        flat = delta.flatten(1)
        if self.norm == "Linf":
            return flat.amax(1).maximum(-flat.amin(1))
        return torch.linalg.vector_norm(flat, dim=1) if self.norm == "L2" else flat.abs().sum(1)

    def excess(self, x: Tensor, x_adv: Tensor, points: Tensor | None = None) -> Tensor:
        size = x[:1].numel()
        max_norm_of_rounding = {"Linf": 1.0, "L2": math.sqrt(size), "L1": float(size)}[self.norm]
        slack = TOLERANCE * self.eps + PIXEL_ROUNDING * max_norm_of_rounding
        return (self.perturbation_size(x, x_adv) - self.eps - slack).clamp_min(0)

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Lowest and highest values of ball ∩ box where that is a box, which is so for Linf."""
        if self.norm != "Linf":
            return None
        return (x - self.eps).clamp_min_(0), (x + self.eps).clamp_max_(1)

    def project(self, x: Tensor, x_adv: Tensor, scale: Tensor | None = None) -> Tensor:
        """The point of ball ∩ box that is nearest to ``x_adv`` in the Euclidean distance.

        ``scale`` (N,) multiplies eps for each sample.
        """
        import torch

        scale = x.new_ones(len(x)) if scale is None else scale
        eps = scale.to(torch.float64)[:, None] * self.eps
        if self.norm == "Linf":
            eps_per_pixel = eps.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
            return x_adv.clamp(x - eps_per_pixel, x + eps_per_pixel).clamp(0, 1)
        from buttress.threats import projections

        project = projections.project_l2 if self.norm == "L2" else projections.project_l1
        return project(x, x_adv, eps)

    def scale_into_ball(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """``x_adv`` drawn straight towards ``x`` into the ball, then clipped to [0, 1].

        Some published attacks do this; the point lies in ball ∩ box, but is not the nearest there.
        """
        if self.norm == "Linf":
            return self.project(x, x_adv)
        import torch

        delta = x_adv - x
        factor = (self.eps / self.norm_of(delta).clamp_min(TINY)).clamp_max_(1)
        return torch.addcmul(x, delta, factor.view(-1, *[1] * (x.ndim - 1))).clamp_(0, 1)

    def steepest_direction(self, grad: Tensor) -> Tensor:
        """The direction of unit norm along which a function with this gradient rises most."""
        import torch

        if self.norm == "Linf":
            return grad.sign()
        flat = grad.flatten(1)
        if self.norm == "L2":
            unit = flat / flat.norm(dim=1, keepdim=True).clamp_min(TINY)
        else:
            index = flat.abs().argmax(1, keepdim=True)
            unit = torch.zeros_like(flat).scatter_(1, index, flat.gather(1, index).sign())
        return unit.view_as(grad)

    def step_direction(self, x_t: Tensor, grad: Tensor, density: float = 0.01) -> Tensor:
        """The direction of unit norm that an iterative attack steps along.

        For Linf and L2 it is `steepest_direction`. For L1 the steepest direction moves one
        coordinate, which soon stops at the box, so the sign is taken on the share ``density`` of
        the coordinates with the largest gradients among those the box does not block (as in SLIDE,
        arXiv:1904.13000).
        """
        if self.norm != "L1":
            return self.steepest_direction(grad)
        import torch

        is_blocked = ((x_t <= 0) & (grad < 0)) | ((x_t >= 1) & (grad > 0))
        flat = grad.masked_fill(is_blocked, 0).flatten(1)
        top = flat.abs().topk(max(1, round(density * flat.shape[1])), dim=1).indices
        signs = torch.zeros_like(flat).scatter_(1, top, flat.gather(1, top).sign())
        return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).view_as(grad)

    def dual_norm(self, grad: Tensor) -> Tensor:
        """(N,) dual norms: by how much a linear function rises per unit of eps."""
        flat = grad.flatten(1)
        if self.norm == "Linf":
            return flat.abs().sum(1)
        return flat.norm(dim=1) if self.norm == "L2" else flat.abs().amax(1)

    def random_start(self, x: Tensor, rng: SampleRNG, restart: int | Tensor = 0) -> Tensor:
        """A point drawn uniformly from the ball around ``x``, projected onto the box."""
        return self.project(x, self.random_point(x, rng, restart))

    def random_point(self, x: Tensor, rng: SampleRNG, restart: int | Tensor = 0) -> Tensor:
        """A point drawn uniformly from the ball around ``x``; it may lie outside [0, 1]."""
        import torch

        if self.norm == "Linf":
            noise = rng.draw_uniform(x, restart)
            return noise.mul_(2).sub_(1).mul_(self.eps).add_(x)
        shape = (len(x), *[1] * (x.ndim - 1))
        noise = rng.draw_normal(x, restart)
        size = x[0].numel() if len(x) else 1
        radius_rng = replace(rng, purpose=rng.purpose + "/radius")
        uniform = radius_rng.draw_uniform(x.new_empty(len(x), 1), restart).view(shape)
        radius = self.eps * uniform ** (1 / size)
        if self.norm == "L2":
            unit = noise / noise.flatten(1).norm(dim=1).clamp_min(TINY).view(shape)
        else:  # Laplace directions are uniform on the L1 sphere; the normal noise gives their law
            tail = torch.erfc(noise.abs() / math.sqrt(2)).clamp_min(1e-30)
            laplace = noise.sign() * -tail.log()
            unit = laplace / laplace.flatten(1).abs().sum(1).clamp_min(TINY).view(shape)
        return x + radius * unit

    def random_neighbor(
        self, x: Tensor, best: Tensor, fraction: Tensor, rng: SampleRNG, draw: Tensor
    ) -> Tensor:
        """A window of ``best`` is replaced by a random member's; single values move by a step."""
        import torch

        height, width = x.shape[2:]
        if height * width == 1:
            step = self.random_point(x, rng, draw) - x
            return self.project(x, best + fraction.view(-1, 1, 1, 1) * step)
        corners = replace(rng, purpose=rng.purpose + "/window")
        top, left, is_high = corners.draw_uniform(x.new_empty(len(x), 2 + x.shape[1]), draw).split(
            [1, 1, x.shape[1]], 1
        )
        side = (fraction * height * width).sqrt().round().clamp_min(1)[:, None]

        def covers(start: Tensor, length: int) -> Tensor:
            offset = torch.arange(length, device=x.device) - ((length - side + 1) * start).floor()
            return ((offset >= 0) & (offset < side)).to(x.dtype)

        window = covers(top, height)[:, None, :, None] * covers(left, width)[:, None, None, :]
        if (bounds := self.bounds(x)) is not None:  # corners of the box, one choice per channel
            member = torch.where((is_high < 0.5)[:, :, None, None], *bounds)
        else:
            member = self.random_start(x, rng, draw)
        return self.project(x, torch.lerp(best, member, window))


def format_eps(eps: float) -> str:
    """``8/255`` where that is what it is, else the number; `parse_eps` reads it back."""
    levels = eps * 255
    if 0 < levels <= 64 and round(levels * 4) / 4 / 255 == eps:
        return f"{round(levels * 4) / 4:g}/255"
    return f"{eps:.12g}"
