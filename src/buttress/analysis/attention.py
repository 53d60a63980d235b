"""Attention distance and rollout of transformers, clean and under attack.

Mean attention distance: Dosovitskiy et al., arXiv:2010.11929, appendix D.7. Rollout: Abnar and
Zuidema, "Quantifying attention flow in transformers", arXiv:2005.00928.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult, Count, Natural
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.gallery import encode_png, first_image_per_class, show_png
from buttress.analysis.methods.attention_maps import (
    AttentionMap,
    TokenLayout,
    attention_changes,
    attention_distances,
    attention_maps,
    attention_rollout,
    token_layout,
)
from buttress.analysis.subject import (
    AnalysisNotApplicable,
    AnalysisSubject,
    CostScope,
    ImageSample,
    attack_sample,
    load_sample,
)
from buttress.analysis.uncertainty import FORMULA, SampleUnits
from buttress.attacks.core import create_attack
from buttress.config import Spec
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode

MAP_BATCH = 8  # images whose maps are in memory at once


class AttentionLayer(Spec):
    """One layer of attention; distances are in pixels."""

    name: str
    groups: int  # windows, or other groups of tokens that attend to each other only
    tokens: int  # keys of a query
    distance: tuple[float, ...]  # of each head; None where only class tokens are queries
    adversarial_distance: tuple[float, ...]
    uniform_distance: float | None  # for uniform attention
    attention_change: float  # fraction of attention that the attack moves


class AttentionExample(Spec):
    """Attention rollout of one image; pictures are PNG in base64."""

    id: int
    label: int
    image: str
    clean_rollout: str
    adversarial_rollout: str


class AttentionResult(AnalysisResult):
    """Attention distances, their change under attack, and rollouts of a few images."""

    attack: str
    threat: str
    images: int
    layers: tuple[AttentionLayer, ...]
    rollout_change: float | None
    examples: tuple[AttentionExample, ...]
    rollout_unavailable: str  # why there is none

    @staticmethod
    def plot(results: Mapping[str, AttentionResult], figure: Figure) -> None:
        """Plot distances by head, attention change by layer, and rollouts if there are any."""
        with_examples = [(label, r) for label, r in results.items() if r.examples]
        rows = 1 + len(with_examples)
        heights = [1.6] + [1.0] * len(with_examples)
        subfigures = figure.subfigures(rows, 1, squeeze=False, height_ratios=heights)[:, 0]
        distance_axes, change_axes = subfigures[0].subplots(1, 2)
        _draw_distances(results, distance_axes)
        for label, result in results.items():
            places = range(1, len(result.layers) + 1)
            change_axes.plot(
                places, [a.attention_change for a in result.layers], marker="o", label=label
            )
        _label_axes(change_axes, "attention change (fraction)", "change under attack")
        if any(results):
            change_axes.legend(fontsize="x-small")
        for part, (label, result) in zip(subfigures[1:], with_examples, strict=True):
            axes = part.subplots(1, 3 * len(result.examples), squeeze=False)[0]
            part.suptitle(
                f"{label} image, rollout, rollout under attack".strip(), fontsize="x-small"
            )
            for number, example in enumerate(result.examples):
                pictures = (example.image, example.clean_rollout, example.adversarial_rollout)
                for axis, picture in zip(axes[3 * number :], pictures, strict=False):
                    show_png(axis, picture)
                    axis.set_axis_off()

    def summary(self) -> str:
        """Summarize attention distances and their change under attack."""
        spatial_layers = [a for a in self.layers if a.distance]
        sentence = ""
        if spatial_layers:
            first, last = (
                sum(a.distance) / len(a.distance) for a in (spatial_layers[0], spatial_layers[-1])
            )
            sentence = (
                f"Mean attention distance: {first:.1f} pixels in the first layer and {last:.1f} "
                f"in the last (uniform attention: {spatial_layers[0].uniform_distance:.1f} and "
                f"{spatial_layers[-1].uniform_distance:.1f}). "
            )
        most_changed = max(self.layers, key=lambda a: a.attention_change)
        sentence += (
            f"{self.attack} in {self.threat} changes {most_changed.attention_change:.1%} of the "
            f"attention in {most_changed.name}, the most affected layer ({self.images} images)"
        )
        if self.rollout_change is not None:
            return f"{sentence}, and {self.rollout_change:.1%} of the rollout."
        return f"{sentence}."


def _draw_distances(results: Mapping[str, AttentionResult], axes: Axes) -> None:
    for number, (label, result) in enumerate(results.items()):
        points = [
            (i + 1 + 0.12 * number, d) for i, a in enumerate(result.layers) for d in a.distance
        ]
        axes.scatter([p[0] for p in points], [p[1] for p in points], s=14, label=label)
        uniform = [(i + 1, a.uniform_distance) for i, a in enumerate(result.layers)]
        for layer_position, height in uniform:
            if height is not None:
                axes.hlines(
                    height, layer_position - 0.3, layer_position + 0.3, colors="gray", lw=0.8
                )
    _label_axes(
        axes, "distance (pixels)", "mean attention distance per head; gray: uniform attention"
    )


def _label_axes(axes: Axes, height: str, title: str) -> None:
    axes.set_xlabel("layer", fontsize="x-small")
    axes.set_ylabel(height, fontsize="x-small")
    axes.set_title(title, fontsize="x-small")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.locator_params(axis="x", integer=True)


def attention_cost(scope: CostScope, *, attack: str, steps: int, limit: int, **_: Any) -> PassCount:
    """Cost: the attack, and a forward pass of each image before and after."""
    images = min(limit, scope.num_images)
    return attack_passes(create_attack(attack, steps=steps), scope, images, looks=2)


@ANALYSES.register(
    "attention",
    paper="arXiv:2010.11929",
    tags=("attack", "transformer"),
    cost=attention_cost,
    example_args={"steps": 2, "limit": 4, "examples": 2},
    uncertainty=(FORMULA.model_copy(update={"pattern": "*.uniform_distance"}),),
)
def attention(
    subject: AnalysisSubject,
    *,
    attack: str = "pgd",
    steps: Count = 20,
    limit: Count = 32,
    examples: Natural = 3,
) -> AttentionResult:
    r"""Mean attention distance of each head, clean and under attack, and attention rollout.

    .. math:: D = \sum_k a_{qk} |p_q - p_k|, \qquad R = \prod_l (A_l + I) / 2

    D is averaged over images and queries, with class tokens left out; p is the middle of a token's
    cell. Windows count as they are: tokens outside get no attention. The change under attack is
    half the sum of absolute changes of the weights.

    Departure from the paper: in talking heads the weights after the softmax are shown, before the
    heads are mixed once more.
    """
    sample = load_sample(subject.model, subject.first_images(limit))
    with eval_mode(subject.model):
        _require_spatial_attention(attention_maps(subject.model, sample.x[:1])[1])
    adversarial = attack_sample(subject, sample, steps, attack)
    task = subject.progress.add_task("attention maps", len(sample))
    size = (sample.x.shape[-2], sample.x.shape[-1])
    layers: list[LayerMeasurements] = []
    rollouts: list[tuple[Tensor, Tensor] | None] = []
    for part in torch.arange(len(sample)).split(MAP_BATCH):
        with eval_mode(subject.model):
            clean, attacked = (
                attention_maps(subject.model, s.x[part])[1] for s in (sample, adversarial)
            )
        if not layers:
            layers = [LayerMeasurements(m, token_layout(m, len(part), size)) for m in clean]
        for layer, clean_map, attacked_map in zip(layers, clean, attacked, strict=True):
            layer.add(clean_map, attacked_map, len(part))
        rollouts.append(_rollouts(clean, attacked, len(part), size[0] / size[1]))
        task.advance(len(part))
    task.close()
    available = [r for r in rollouts if r is not None]
    has_rollout = len(available) == len(rollouts)
    pair = [torch.cat([r[k] for r in available]) for k in (0, 1)] if has_rollout else []
    changes = attention_changes(pair[0], pair[1], len(sample)) if has_rollout else None
    units = SampleUnits(sample.ids)
    samples = {} if changes is None else {"rollout_change": units.store(changes)}
    for number, layer in enumerate(layers):
        samples |= {f"layers[{number}].{k}": units.store(v) for k, v in layer.figures().items()}
    return AttentionResult(
        attack=attack,
        threat=str(subject.threat),
        images=len(sample),
        layers=tuple(layer.to_result() for layer in layers),
        rollout_change=None if changes is None else float(changes.mean()),
        examples=_examples(sample, pair, examples) if has_rollout else (),
        rollout_unavailable="" if has_rollout else "the tokens differ from layer to layer",
        samples=samples,
    )


class LayerMeasurements:
    """Distances and changes of one layer, image by image."""

    def __init__(self, first: AttentionMap, layout: TokenLayout | None) -> None:
        self.first, self.layout = first, layout
        self.changes: list[Tensor] = []  # (n,) each
        self.distances: list[Tensor] = []  # (2, n, heads) each: clean and adversarial

    def add(self, clean: AttentionMap, adversarial: AttentionMap, images: int) -> None:
        self.changes.append(attention_changes(clean.weights, adversarial.weights, images))
        if self.layout is not None:
            maps = (clean.weights, adversarial.weights)
            distances = [attention_distances(weights, self.layout) for weights in maps]
            self.distances.append(torch.stack(distances))

    def figures(self) -> dict[str, Tensor]:
        """(N,) values of each figure."""
        figures = {"attention_change": torch.cat(self.changes)}
        if self.layout is not None:
            by_head = torch.cat(self.distances, 1).unbind()
            for name, values in zip(("distance", "adversarial_distance"), by_head, strict=True):
                figures |= {f"{name}[{head}]": v for head, v in enumerate(values.unbind(1))}
        return figures

    def to_result(self) -> AttentionLayer:
        has_distance = self.layout is not None
        mean = torch.cat(self.distances, 1).mean(1).tolist() if has_distance else [[], []]
        return AttentionLayer(
            name=self.first.name,
            groups=self.layout.groups if self.layout else 1,
            tokens=self.first.weights.shape[-1],
            distance=tuple(mean[0]),
            adversarial_distance=tuple(mean[1]),
            uniform_distance=float(self.layout.distance.mean()) if self.layout else None,
            attention_change=float(torch.cat(self.changes).mean()),
        )


def _require_spatial_attention(maps: list[AttentionMap]) -> None:
    if not maps:
        raise AnalysisNotApplicable(
            "the model has no softmax attention layers, so attention maps are not defined for it"
        )
    if any(m.is_over_channels for m in maps):
        raise AnalysisNotApplicable(
            "the model attends over channels, not over image positions, so attention "
            "distance and rollout are not defined for it"
        )


def _rollouts(
    clean: list[AttentionMap], adversarial: list[AttentionMap], images: int, ratio: float
) -> tuple[Tensor, Tensor] | None:
    if any(len(m.weights) != images for m in clean):
        return None  # windows
    pair = [attention_rollout([m.weights for m in maps], ratio) for maps in (clean, adversarial)]
    if pair[0] is None or pair[1] is None:
        return None
    return pair[0].cpu(), pair[1].cpu()


def _examples(
    sample: ImageSample, rollouts: Sequence[Tensor], count: int
) -> tuple[AttentionExample, ...]:
    def render(values: Tensor, image: Tensor) -> str:
        """The image, darkened where the rollout is low."""
        high, wide = image.shape[-2:]
        rows = max(1, round((len(values) * high / wide) ** 0.5))
        brightness = (values / values.max()).view(1, 1, rows, -1).to(image)
        upsampled = torch.nn.functional.interpolate(brightness, (high, wide), mode="nearest")[0]
        return encode_png(image * (0.15 + 0.85 * upsampled))

    rows = first_image_per_class(sample.y.cpu(), count).tolist()
    x = sample.x.cpu()
    return tuple(
        AttentionExample(
            id=int(sample.ids[i]),
            label=int(sample.y[i]),
            image=encode_png(x[i]),
            clean_rollout=render(rollouts[0][i], x[i]),
            adversarial_rollout=render(rollouts[1][i], x[i]),
        )
        for i in rows
    )
