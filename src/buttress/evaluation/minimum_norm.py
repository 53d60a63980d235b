"""The smallest eps that fools a model on each image, by several attacks, and who comes nearest.

Attacks that walk along the decision boundary (``fab``, ``fab-t``) find a small perturbation by
themselves. Any other attack is run at several eps for each image, chosen by bisection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from buttress.attacks.core import Attack, create_attack
from buttress.attacks.fab import FABBase
from buttress.data import Batch
from buttress.engine import AttackOptions, run_attack
from buttress.engine.boundary import nearest_misclassified
from buttress.errors import UserError
from buttress.evaluation.inputs import load_images
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.results.core import AccuracyEstimate
from buttress.statistics import Interval
from buttress.system.rng import isolated_rng
from buttress.threats.norm_ball import Norm, NormBall, parse_norm

if TYPE_CHECKING:
    from buttress.data.convert import DataLike

Floats = NDArray[np.float64]
DEFAULT_ATTACKS = ("fab-t", "fast")
RESAMPLES = 2000  # of the bootstrap
EPS_RANGE = 4.0  # largest eps that is tried, over the usual eps of the dataset
CHUNK_IMAGES = 1024  # images that are attacked at once
LEVELS = 255  # values of eps between zero and the largest one, for bisection


@dataclass(frozen=True, repr=False)
class MinimumNorms:
    """The smallest eps at which each attack fools each image."""

    norm: Norm
    max_eps: float  # the largest that was tried
    distances: Mapping[str, Floats]  # attack -> (N,); 0: misclassified clean, inf: none was found
    passes: Mapping[str, float]  # attack -> forward and backward passes, mean over images

    def __repr__(self) -> str:
        medians = ", ".join(f"{name} {self.median(name):.4g}" for name in self.distances)
        return f"MinimumNorms({self.norm}, {len(self.best):,} images, medians: {medians})"

    @property
    def best(self) -> Floats:
        """(N,) the smallest distance that any attack found."""
        return np.asarray(np.minimum.reduce([*self.distances.values()]))

    def with_attack(self, name: str, distances: ArrayLike, passes: float) -> MinimumNorms:
        """Add the distances of another attack or tool, such as one of foolbox or adv-lib."""
        column = np.asarray(distances, dtype=np.float64)
        if column.shape != self.best.shape or np.isnan(column).any() or (column < 0).any():
            raise UserError(
                f"distances of {name!r} must be {len(self.best)} numbers from 0 on, inf where no "
                f"perturbation was found, but got {column.dtype} {column.shape}"
            )
        return replace(
            self,
            distances={**self.distances, name: column},
            passes={**self.passes, name: float(passes)},
        )

    def optimality(self, name: str) -> float:
        r"""How near an attack comes to the best known perturbations: 1 if nowhere farther.

        AttackBench's measure (arXiv:2404.19460): with :math:`\epsilon_0` the largest of the best
        known distances :math:`d^*_i`, over images that are classified correctly,

        .. math:: \frac{\sum_i \epsilon_0 - \min(d_i, \epsilon_0)}{\sum_i \epsilon_0 - d^*_i}

        the ratio of the areas between clean accuracy and the curves of robust accuracy. The curves
        are steps here, where the published code uses trapezoids. An image that no attack fools
        counts as if its distance were the largest eps.
        """
        reached, total = self._areas(name)
        return float(reached.sum() / total.sum()) if total.sum() > 0 else 1.0

    def optimality_interval(self, name: str) -> Interval:
        """The 95% interval of the optimality over the draw of images, by the bootstrap."""
        reached, total = self._areas(name)
        if not total.sum() > 0:
            return Interval(1.0, 1.0)
        generator, n = np.random.default_rng(0), len(total)
        weights = generator.multinomial(n, [1 / n] * n, RESAMPLES)
        ratios = (weights @ reached) / np.maximum(weights @ total, np.finfo(np.float64).tiny)
        return Interval(*np.quantile(ratios, (0.025, 0.975)).tolist())

    def _areas(self, name: str) -> tuple[Floats, Floats]:
        """(images,) how far below the largest best distance an attack gets, and the best gets."""
        best = self.best
        is_correct = best > 0
        best = np.minimum(best[is_correct], self.max_eps)
        largest = best.max(initial=0.0)
        return largest - np.minimum(self.distances[name][is_correct], largest), largest - best

    def curve(self, eps: Sequence[float], name: str | None = None) -> list[AccuracyEstimate]:
        """Robust accuracy at each eps with its 95% interval, of one attack or of the best."""
        distances = self.best if name is None else self.distances[name]
        return [AccuracyEstimate.from_scores(distances > value) for value in eps]

    def median(self, name: str | None = None) -> float:
        """The median distance over images that are classified correctly; inf if most are robust."""
        distances = self.best if name is None else self.distances[name]
        is_correct = self.best > 0
        return float(np.median(distances[is_correct])) if is_correct.any() else 0.0


def minimum_norms(
    model: nn.Module,
    data: DataLike,
    norm: str = "Linf",
    *,
    attacks: Sequence[str] | Mapping[str, Mapping[str, Any]] = DEFAULT_ATTACKS,
    max_eps: float | None = None,
    options: AttackOptions | None = None,
) -> MinimumNorms:
    """Find the smallest eps at which attacks fool a model, for each image.

    Args:
        model: any model from [0, 1] images to logits.
        data: the images, in any form that `evaluate` takes.
        norm: Linf, L2 or L1.
        attacks: names, or names with the arguments of each attack.
        max_eps: the largest eps to try; default: 4 times the usual eps of the dataset. Bisection
            has 255 values between zero and it.
        options: seed and batch size.
    """
    threat_norm, images = parse_norm(norm), load_images(model, data)
    options = replace(options or AttackOptions(), stop_when_fooled=True)
    largest = max_eps if max_eps is not None else EPS_RANGE * images.budgets[threat_norm]
    largest = min(largest, 1.0) if threat_norm == "Linf" else largest
    threat = NormBall(threat_norm, largest)
    args = attacks if isinstance(attacks, Mapping) else {name: {} for name in attacks}
    distances, passes = {}, {}
    for name, attack_args in args.items():
        attack = create_attack(name, **attack_args)
        batches = images.batches(CHUNK_IMAGES)
        columns = [_distances(attack, model, batch, threat, options) for batch in batches]
        distances[name] = torch.cat([c[0] for c in columns]).numpy()
        passes[name] = float(torch.cat([c[1] for c in columns]).double().mean())
    return MinimumNorms(threat_norm, largest, distances, passes)


def _distances(
    attack: Attack, model: nn.Module, batch: Batch, threat: NormBall, options: AttackOptions
) -> tuple[Tensor, Tensor]:
    """(N,) distances and (N,) passes of an attack."""
    x, y, ids = batch
    if isinstance(attack, FABBase):
        found = nearest_misclassified(attack, model, x, y, threat, ids=ids, options=options)
        return found.distance.where(found.distance <= threat.eps, torch.inf), found.passes
    return _bisect(attack, model, batch, threat, options)


def _bisect(
    attack: Attack, model: nn.Module, batch: Batch, threat: NormBall, options: AttackOptions
) -> tuple[Tensor, Tensor]:
    """The smallest perturbation that an attack finds at eps of a grid, by bisection per image."""
    x, y, ids = batch
    with eval_mode(model), torch.no_grad(), isolated_rng(x.device, options.seed, "bisect"):
        parts = [model(to_model_device(model, part)) for part in x.split(options.batch_size)]
    is_wrong = torch.cat(parts).argmax(1).cpu() != y
    distance = torch.full((len(x),), torch.inf, dtype=torch.float64)
    distance[is_wrong] = 0.0
    passes = torch.ones(len(x), dtype=torch.int64)
    low, high = torch.zeros(len(x)).long(), torch.full((len(x),), LEVELS + 1)
    high[is_wrong] = 1
    while bool((high - low > 1).any()):
        level = ((low + high) // 2).where(high - low > 1, 0)
        for value in level[level > 0].unique().tolist():
            rows = (level == value).nonzero()[:, 0]
            ball = NormBall(threat.norm, threat.eps * value / LEVELS)
            out = run_attack(attack, model, x[rows], y[rows], ball, ids=ids[rows], options=options)
            fooled = out.fooled.cpu()
            size = ball.perturbation_size(x[rows], out.x_adv.cpu()).double()
            passes[rows] += (out.counter.forward + out.counter.backward).cpu()
            distance[rows] = size.where(fooled, torch.inf).minimum(distance[rows])
            reached = (size * LEVELS / threat.eps).ceil().long().clamp_max(value)
            reached = reached.maximum(low[rows] + 1)
            high[rows] = reached.where(fooled, high[rows])
            low[rows] = torch.full_like(rows, value).where(~fooled, low[rows])
    return distance, passes
