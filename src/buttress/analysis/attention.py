"""Where transformers look, and whether an attack makes them look elsewhere.

Mean attention distance: Dosovitskiy et al., arXiv:2010.11929, appendix D.7. Rollout: Abnar and
Zuidema, "Quantifying attention flow in transformers", arXiv:2005.00928.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from buttress.analysis.arguments import whole
from buttress.analysis.attention_maps import (
    Layout,
    Map,
    attention_maps,
    layout_of,
    mean_distance,
    moved,
    rollout,
)
from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.gallery import one_per_class, png, show
from buttress.analysis.sample import Sample, attacked, sample_of
from buttress.analysis.subject import DoesNotApply, Subject
from buttress.attacks.call import create_attack
from buttress.attacks.freeze import frozen
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH = 8  # images whose maps are in memory at once


class AttentionLayer(Spec):
    """One layer of attention; distances are in pixels."""

    name: str
    groups: int  # windows, or other groups of tokens that see each other only
    tokens: int  # keys of a query
    distance: tuple[float, ...]  # of each head; none where only class tokens ask
    attacked_distance: tuple[float, ...]
    uniform_distance: float | None  # if every token were looked at alike
    moved: float  # share of attention that the attack moves elsewhere


class Looked(Spec):
    """Where the network looked in one image; pictures are PNG in base64."""

    id: int
    label: int
    image: str
    clean: str
    attacked: str


class Attention(Spec):
    """How far heads look, how an attack moves that, and rollouts of a few images."""

    attack: str
    threat: str
    images: int
    layers: tuple[AttentionLayer, ...]
    rollout_moved: float | None
    examples: tuple[Looked, ...]
    no_rollout: str  # why there is none


def plot_attention(results: Mapping[str, Attention], figure: Figure) -> None:
    """Distances by head, attention moved by layer, and rollouts below where there are any."""
    shown = [(label, r) for label, r in results.items() if r.examples]
    rows = 1 + len(shown)
    heights = [1.6] + [1.0] * len(shown)
    parts = figure.subfigures(rows, 1, squeeze=False, height_ratios=heights)[:, 0]
    left, right = parts[0].subplots(1, 2)
    _draw_distances(results, left)
    for label, result in results.items():
        places = range(1, len(result.layers) + 1)
        right.plot(places, [a.moved for a in result.layers], marker="o", label=label)
    _label(right, "attention moved (share)", "what the attack moves")
    if any(results):
        right.legend(fontsize="x-small")
    for part, (label, result) in zip(parts[1:], shown, strict=True):
        axes = part.subplots(1, 3 * len(result.examples), squeeze=False)[0]
        part.suptitle(f"{label} image, rollout, rollout under attack".strip(), fontsize="x-small")
        for number, example in enumerate(result.examples):
            pictures = (example.image, example.clean, example.attacked)
            for axis, picture in zip(axes[3 * number :], pictures, strict=False):
                show(axis, picture)
                axis.set_axis_off()


def _draw_distances(results: Mapping[str, Attention], axes: Axes) -> None:
    for number, (label, result) in enumerate(results.items()):
        points = [
            (i + 1 + 0.12 * number, d) for i, a in enumerate(result.layers) for d in a.distance
        ]
        axes.scatter([p[0] for p in points], [p[1] for p in points], s=14, label=label)
        even = [(i + 1, a.uniform_distance) for i, a in enumerate(result.layers)]
        for place, height in even:
            if height is not None:
                axes.hlines(height, place - 0.3, place + 0.3, colors="grey", lw=0.8)
    _label(axes, "distance (pixels)", "how far each head looks; grey: uniform attention")


def _label(axes: Axes, height: str, title: str) -> None:
    axes.set_xlabel("layer", fontsize="x-small")
    axes.set_ylabel(height, fontsize="x-small")
    axes.set_title(title, fontsize="x-small")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.locator_params(axis="x", integer=True)


def cost_attention(subject: Subject, *, attack: str, steps: int, limit: int, **_: Any) -> Passes:
    """The attack, and a look at each image before and after."""
    images = min(limit, len(subject.data))
    return passes_of(create_attack(attack, steps=steps), subject, images) + Passes(2 * images)


def says_attention(result: Attention) -> str:
    """How far the first and the last layer look, and what the attack moves."""
    placed = [a for a in result.layers if a.distance]
    said = ""
    if placed:
        first, last = (sum(a.distance) / len(a.distance) for a in (placed[0], placed[-1]))
        said = (
            f"Heads look {first:.1f} pixels far in the first layer and {last:.1f} in the last "
            f"(uniform attention: {placed[0].uniform_distance:.1f} and "
            f"{placed[-1].uniform_distance:.1f}). "
        )
    most = max(result.layers, key=lambda a: a.moved)
    said += (
        f"{result.attack} in {result.threat} moves {most.moved:.1%} of the attention in {most.name}"
        f", where it moves most ({result.images} images)"
    )
    if result.rollout_moved is not None:
        return f"{said}, and {result.rollout_moved:.1%} of the rollout."
    return f"{said}."


@ANALYSES.register(
    "attention",
    paper="arXiv:2010.11929",
    tags=("attack", "transformer"),
    result=Attention,
    plot=plot_attention,
    cost=cost_attention,
    says=says_attention,
)
def attention(
    subject: Subject, *, attack: str = "pgd", steps: int = 20, limit: int = 32, count: int = 3
) -> Attention:
    r"""How far each head looks, clean and attacked, and attention rollout.

    .. math:: D = \sum_k a_{qk} |p_q - p_k|, \qquad R = \prod_l (A_l + I) / 2

    D is averaged over images and queries, with class tokens left out; p is the middle of a token's
    cell. Windows count as they are: tokens outside are never looked at. What an attack moves is
    half the sum of absolute changes of the weights.

    Departure from the paper: in talking heads the weights after the softmax are shown, before the
    heads are mixed once more.
    """
    whole(1, steps=steps, limit=limit)
    whole(0, count=count)
    sample = sample_of(subject.model, subject.first(limit))
    with frozen(subject.model):
        _check(attention_maps(subject.model, sample.x[:1])[1])
    after = attacked(subject, sample, steps, attack)
    task = subject.progress.task("attention maps", len(sample))
    sums: list[Sums] = []
    rollouts: list[tuple[Tensor, Tensor] | None] = []
    for part in torch.arange(len(sample)).split(BATCH):
        with frozen(subject.model):
            clean, moved_to = (attention_maps(subject.model, s.x[part])[1] for s in (sample, after))
        size = (sample.x.shape[-2], sample.x.shape[-1])
        for index, (one, other) in enumerate(zip(clean, moved_to, strict=True)):
            if index == len(sums):
                sums.append(Sums(one, layout_of(one, len(part), size)))
            sums[index].add(one, other, len(part))
        ratio = size[0] / size[1]
        rollouts.append(_rollouts(clean, moved_to, len(part), ratio))
        task.advance(len(part))
    task.close()
    whole_maps = [r for r in rollouts if r is not None]
    seen = None
    if len(whole_maps) == len(rollouts):
        seen = (torch.cat([r[0] for r in whole_maps]), torch.cat([r[1] for r in whole_maps]))
    return Attention(
        attack=attack,
        threat=str(subject.threat),
        images=len(sample),
        layers=tuple(s.layer() for s in sums),
        rollout_moved=moved(*seen) if seen else None,
        examples=_examples(sample, seen, count) if seen else (),
        no_rollout="" if seen else "the tokens are not the same from layer to layer",
    )


class Sums:
    """What is known of one layer so far."""

    def __init__(self, first: Map, layout: Layout | None) -> None:
        self.first, self.layout = first, layout
        self.images = 0
        self.moved = 0.0
        self.distance = torch.zeros(2, first.weights.shape[1], dtype=torch.float64)
        self.keys = first.weights.shape[-1]
        self.groups = layout.groups if layout else 1

    def add(self, clean: Map, other: Map, images: int) -> None:
        self.images += images
        self.moved += images * moved(clean.weights, other.weights)
        if self.layout is not None:
            found = [mean_distance(m.weights, self.layout) for m in (clean, other)]
            self.distance += images * torch.stack(found)

    def layer(self) -> AttentionLayer:
        mean = (self.distance / self.images).tolist() if self.layout else [[], []]
        return AttentionLayer(
            name=self.first.name,
            groups=self.groups,
            tokens=self.keys,
            distance=tuple(mean[0]),
            attacked_distance=tuple(mean[1]),
            uniform_distance=float(self.layout.distance.mean()) if self.layout else None,
            moved=self.moved / self.images,
        )


def _check(maps: list[Map]) -> None:
    if not maps:
        raise DoesNotApply("this network has no softmax attention: there are no maps to look at")
    if any(m.between_channels for m in maps):
        raise DoesNotApply(
            "this network attends between channels, not places: its maps have no distances, and "
            "no rollout over the image"
        )


def _rollouts(
    clean: list[Map], other: list[Map], images: int, ratio: float
) -> tuple[Tensor, Tensor] | None:
    if any(len(m.weights) != images for m in clean):
        return None  # windows
    found = [rollout([m.weights for m in maps], ratio) for maps in (clean, other)]
    if found[0] is None or found[1] is None:
        return None
    return found[0].cpu(), found[1].cpu()


def _examples(sample: Sample, seen: tuple[Tensor, Tensor], count: int) -> tuple[Looked, ...]:
    def picture(values: Tensor, image: Tensor) -> str:
        """The image, dark where the network does not look."""
        high, wide = image.shape[-2:]
        rows = max(1, round((len(values) * high / wide) ** 0.5))
        light = (values / values.max()).view(1, 1, rows, -1).to(image)
        grown = torch.nn.functional.interpolate(light, (high, wide), mode="nearest")[0]
        return png(image * (0.15 + 0.85 * grown))

    rows = one_per_class(sample.y.cpu(), count).tolist()
    x = sample.x.cpu()
    return tuple(
        Looked(
            id=int(sample.ids[i]),
            label=int(sample.y[i]),
            image=png(x[i]),
            clean=picture(seen[0][i], x[i]),
            attacked=picture(seen[1][i], x[i]),
        )
        for i in rows
    )
