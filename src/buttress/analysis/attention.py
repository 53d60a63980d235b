"""Attention distance and rollout of transformers, clean and under attack.

Mean attention distance: Dosovitskiy et al., arXiv:2010.11929, appendix D.7. Rollout: Abnar and
Zuidema, "Quantifying attention flow in transformers", arXiv:2005.00928.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES, require_integers
from buttress.analysis.cost import PassCount, attack_passes
from buttress.analysis.gallery import encode_png, first_image_per_class, show_png
from buttress.analysis.methods.attention_maps import (
    AttentionMap,
    TokenLayout,
    attention_change,
    attention_maps,
    attention_rollout,
    mean_attention_distance,
    token_layout,
)
from buttress.analysis.subject import (
    AnalysisNotApplicable,
    AnalysisSubject,
    ImageSample,
    attack_sample,
    load_sample,
)
from buttress.attacks.core import create_attack
from buttress.config import Spec
from buttress.models.eval_mode import eval_mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP_BATCH = 8  # images whose maps are in memory at once


class AttentionLayer(Spec):
    """One layer of attention; distances are in pixels."""

    name: str
    groups: int  # windows, or other groups of tokens that attend to each other only
    tokens: int  # keys of a query
    distance: tuple[float, ...]  # of each head; None where only class tokens are queries
    attacked_distance: tuple[float, ...]
    uniform_distance: float | None  # for uniform attention
    moved: float  # fraction of attention that the attack moves


class AttentionExample(Spec):
    """Attention rollout of one image; pictures are PNG in base64."""

    id: int
    label: int
    image: str
    clean: str
    attacked: str


class AttentionResult(Spec):
    """Attention distances, their change under attack, and rollouts of a few images."""

    attack: str
    threat: str
    images: int
    layers: tuple[AttentionLayer, ...]
    rollout_moved: float | None
    examples: tuple[AttentionExample, ...]
    no_rollout: str  # why there is none


def plot_attention(results: Mapping[str, AttentionResult], figure: Figure) -> None:
    """Plot distances by head, attention change by layer, and rollouts if there are any."""
    with_examples = [(label, r) for label, r in results.items() if r.examples]
    rows = 1 + len(with_examples)
    heights = [1.6] + [1.0] * len(with_examples)
    subfigures = figure.subfigures(rows, 1, squeeze=False, height_ratios=heights)[:, 0]
    distance_axes, change_axes = subfigures[0].subplots(1, 2)
    _draw_distances(results, distance_axes)
    for label, result in results.items():
        places = range(1, len(result.layers) + 1)
        change_axes.plot(places, [a.moved for a in result.layers], marker="o", label=label)
    _label_axes(change_axes, "attention change (fraction)", "change under attack")
    if any(results):
        change_axes.legend(fontsize="x-small")
    for part, (label, result) in zip(subfigures[1:], with_examples, strict=True):
        axes = part.subplots(1, 3 * len(result.examples), squeeze=False)[0]
        part.suptitle(f"{label} image, rollout, rollout under attack".strip(), fontsize="x-small")
        for number, example in enumerate(result.examples):
            pictures = (example.image, example.clean, example.attacked)
            for axis, picture in zip(axes[3 * number :], pictures, strict=False):
                show_png(axis, picture)
                axis.set_axis_off()


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
                    height, layer_position - 0.3, layer_position + 0.3, colors="grey", lw=0.8
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


def attention_cost(
    subject: AnalysisSubject, *, attack: str, steps: int, limit: int, **_: Any
) -> PassCount:
    """Cost: the attack, and a forward pass of each image before and after."""
    images = min(limit, len(subject.data))
    return attack_passes(create_attack(attack, steps=steps), subject, images) + PassCount(
        2 * images
    )


def says_attention(result: AttentionResult) -> str:
    """Summarize attention distances and their change under attack."""
    spatial_layers = [a for a in result.layers if a.distance]
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
    most_changed = max(result.layers, key=lambda a: a.moved)
    sentence += (
        f"{result.attack} in {result.threat} changes {most_changed.moved:.1%} of the "
        f"attention in {most_changed.name}, the most affected layer ({result.images} images)"
    )
    if result.rollout_moved is not None:
        return f"{sentence}, and {result.rollout_moved:.1%} of the rollout."
    return f"{sentence}."


@ANALYSES.register(
    "attention",
    paper="arXiv:2010.11929",
    tags=("attack", "transformer"),
    result=AttentionResult,
    plot=plot_attention,
    cost=attention_cost,
    says=says_attention,
)
def attention(
    subject: AnalysisSubject,
    *,
    attack: str = "pgd",
    steps: int = 20,
    limit: int = 32,
    count: int = 3,
) -> AttentionResult:
    r"""Mean attention distance of each head, clean and under attack, and attention rollout.

    .. math:: D = \sum_k a_{qk} |p_q - p_k|, \qquad R = \prod_l (A_l + I) / 2

    D is averaged over images and queries, with class tokens left out; p is the middle of a token's
    cell. Windows count as they are: tokens outside get no attention. The change under attack is
    half the sum of absolute changes of the weights.

    Departure from the paper: in talking heads the weights after the softmax are shown, before the
    heads are mixed once more.
    """
    require_integers(1, steps=steps, limit=limit)
    require_integers(0, count=count)
    sample = load_sample(subject.model, subject.first_images(limit))
    with eval_mode(subject.model):
        _require_spatial_attention(attention_maps(subject.model, sample.x[:1])[1])
    adversarial = attack_sample(subject, sample, steps, attack)
    task = subject.progress.add_task("attention maps", len(sample))
    sums: list[LayerAccumulator] = []
    rollouts: list[tuple[Tensor, Tensor] | None] = []
    for part in torch.arange(len(sample)).split(MAP_BATCH):
        with eval_mode(subject.model):
            clean, adversarial_maps = (
                attention_maps(subject.model, s.x[part])[1] for s in (sample, adversarial)
            )
        size = (sample.x.shape[-2], sample.x.shape[-1])
        for index, (clean_map, adversarial_map) in enumerate(
            zip(clean, adversarial_maps, strict=True)
        ):
            if index == len(sums):
                sums.append(LayerAccumulator(clean_map, token_layout(clean_map, len(part), size)))
            sums[index].add(clean_map, adversarial_map, len(part))
        ratio = size[0] / size[1]
        rollouts.append(_rollouts(clean, adversarial_maps, len(part), ratio))
        task.advance(len(part))
    task.close()
    available_rollouts = [r for r in rollouts if r is not None]
    rollout_pair = None
    if len(available_rollouts) == len(rollouts):
        rollout_pair = (
            torch.cat([r[0] for r in available_rollouts]),
            torch.cat([r[1] for r in available_rollouts]),
        )
    return AttentionResult(
        attack=attack,
        threat=str(subject.threat),
        images=len(sample),
        layers=tuple(s.to_result() for s in sums),
        rollout_moved=attention_change(*rollout_pair) if rollout_pair else None,
        examples=_examples(sample, rollout_pair, count) if rollout_pair else (),
        no_rollout="" if rollout_pair else "the tokens are not the same from layer to layer",
    )


class LayerAccumulator:
    """Running means of one layer."""

    def __init__(self, first: AttentionMap, layout: TokenLayout | None) -> None:
        self.first, self.layout = first, layout
        self.images = 0
        self.change_sum = 0.0
        self.distance = torch.zeros(2, first.weights.shape[1], dtype=torch.float64)
        self.keys = first.weights.shape[-1]
        self.groups = layout.groups if layout else 1

    def add(self, clean: AttentionMap, adversarial: AttentionMap, images: int) -> None:
        self.images += images
        self.change_sum += images * attention_change(clean.weights, adversarial.weights)
        if self.layout is not None:
            distances = [
                mean_attention_distance(m.weights, self.layout) for m in (clean, adversarial)
            ]
            self.distance += images * torch.stack(distances)

    def to_result(self) -> AttentionLayer:
        mean = (self.distance / self.images).tolist() if self.layout else [[], []]
        return AttentionLayer(
            name=self.first.name,
            groups=self.groups,
            tokens=self.keys,
            distance=tuple(mean[0]),
            attacked_distance=tuple(mean[1]),
            uniform_distance=float(self.layout.distance.mean()) if self.layout else None,
            moved=self.change_sum / self.images,
        )


def _require_spatial_attention(maps: list[AttentionMap]) -> None:
    if not maps:
        raise AnalysisNotApplicable(
            "the model has no softmax attention layers, so attention maps are not defined for it"
        )
    if any(m.between_channels for m in maps):
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
    sample: ImageSample, rollouts: tuple[Tensor, Tensor], count: int
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
            clean=render(rollouts[0][i], x[i]),
            attacked=render(rollouts[1][i], x[i]),
        )
        for i in rows
    )
