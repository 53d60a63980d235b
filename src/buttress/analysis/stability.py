"""Perturbation stability: whose prediction an attack cannot move (RobustWRN, arXiv:2110.03825).

Huang et al., "Exploring Architectural Ingredients of Adversarially Robust Deep Neural Networks",
section 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.subject import Subject
from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.errors import UserError
from buttress.progress import by_share
from buttress.spec import Spec
from buttress.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["prediction", "label"]
BATCH = 256


class Share(Spec):
    """A share of images with its 95% interval."""

    count: int
    share: float
    low: float
    high: float


class ClassStability(Spec):
    """The same for the images of one class."""

    name: str
    images: int
    correct: int
    stable: int
    correct_and_stable: int


class Stability(Spec):
    """All images split by whether they are right and whether an attack moves them."""

    attack: str
    threat: str
    against: Against
    images: int
    correct: Share
    stable: Share
    correct_and_stable: Share  # the robust accuracy
    correct_and_unstable: Share
    wrong_and_stable: Share
    wrong_and_unstable: Share
    stable_if_correct: Share  # of the correct images
    per_class: tuple[ClassStability, ...]


# What is drawn: field, words, colour.
PARTS = (
    ("correct_and_stable", "right and stable (robust accuracy)", "#3a7d44"),
    ("correct_and_unstable", "right, but moved", "#b7d7b9"),
    ("wrong_and_stable", "wrong and stable", "#8c4a3c"),
    ("wrong_and_unstable", "wrong, and moved", "#e3b7ab"),
)


def plot_stability(results: Mapping[str, Stability], figure: Figure) -> None:
    """A bar per run, cut into the four kinds of images; classes beside it where they are known."""
    by_class = any(r.per_class for r in results.values())
    axes = figure.subplots(1, 2 if by_class else 1, squeeze=False)[0]
    _draw_parts(results, axes[0])
    if by_class:
        _draw_classes(results, axes[1])


def _draw_parts(results: Mapping[str, Stability], axes: Axes) -> None:
    places = list(range(len(results)))
    left = [0.0] * len(results)
    for name, words, colour in PARTS:
        shares = [getattr(r, name).share for r in results.values()]
        bars = axes.barh(places, shares, left=left, color=colour, label=words)
        axes.bar_label(bars, [f"{s:.0%}" if s >= 0.04 else "" for s in shares], label_type="center")
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(places, list(results))
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="share of images")
    axes.legend(fontsize="small", ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _draw_classes(results: Mapping[str, Stability], axes: Axes) -> None:
    for label, result in results.items():
        shares = [c.stable / c.images if c.images else float("nan") for c in result.per_class]
        axes.plot([c.name for c in result.per_class], shares, marker="o", label=label)
    axes.tick_params(axis="x", rotation=60)
    axes.set(ylim=(0, 1), ylabel="share of stable images", title="by class")
    if any(results):
        axes.legend(fontsize="small")


def cost_stability(
    subject: Subject,
    *,
    attack: str,
    args: Mapping[str, Any] | None,
    limit: int,
    **_: Any,
) -> Passes:
    """The attack, and a look at each image before and after."""
    images = min(limit, len(subject.data))
    return passes_of(create_attack(attack, **(args or {})), subject, images) + Passes(2 * images)


def says_stability(result: Stability) -> str:
    """The robust accuracy as a product."""
    robust, stable = result.correct_and_stable, result.stable
    return (
        f"{stable.share:.1%} of {result.images} images are stable under {result.attack} in "
        f"{result.threat} (95%: {stable.low:.1%} to {stable.high:.1%}). Robust accuracy "
        f"{robust.share:.1%} = {result.correct.share:.1%} right x "
        f"{result.stable_if_correct.share:.1%} of those stable."
    )


@ANALYSES.register(
    "stability",
    paper="arXiv:2110.03825",
    tags=("attack",),
    result=Stability,
    plot=plot_stability,
    cost=cost_stability,
    says=says_stability,
)
def stability(
    subject: Subject,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    limit: int = 512,
    against: Against = "prediction",
    per_class: bool = False,
) -> Stability:
    r"""Share of images whose prediction an attack cannot move, and robust accuracy split by it.

    .. math:: \{x : \arg\max f(x') = \arg\max f(x)\ \forall x' \in B_\epsilon(x)\}

    Robust accuracy is the share of images that are right and stable.

    Departure from the published code: it attacks the label, so an image that is wrong already is
    pushed further from its label, not away from its prediction, and looks more stable than it is.
    Here the prediction is attacked, which is the same for the images that are right;
    ``against="label"`` is the published way.
    """
    if against not in ("prediction", "label"):
        raise UserError(f"`against` must be prediction or label, but got {against!r}")
    data = subject.first(limit)
    x, y, ids = data.take(torch.arange(len(data)))
    before = predictions(subject.model, x)
    task = subject.progress.task(f"stability under {attack}", len(x))
    told = by_share(task, len(x))
    how = How(subject.seed, BATCH, stop_when_broken=against == "prediction", on_step=told)
    goal = before if against == "prediction" else y
    chosen = create_attack(attack, **(args or {}))
    out = run_attack(chosen, subject.model, x, goal, subject.threat, ids=ids, how=how)
    task.close()
    stable = predictions(subject.model, out.x_adv) == before
    right = before == y
    kinds = {
        "correct": right,
        "stable": stable,
        "correct_and_stable": right & stable,
        "correct_and_unstable": right & ~stable,
        "wrong_and_stable": ~right & stable,
        "wrong_and_unstable": ~right & ~stable,
    }
    classes = data.classes if per_class else ()
    return Stability(
        attack=attack,
        threat=str(subject.threat),
        against=against,
        images=len(x),
        **{name: share(mask) for name, mask in kinds.items()},
        stable_if_correct=share(stable[right]),
        per_class=tuple(_of_class(name, y == k, right, stable) for k, name in enumerate(classes)),
    )


def predictions(model: nn.Module, x: Tensor) -> Tensor:
    """(N,) the classes a model says, on the CPU."""
    with frozen(model), torch.no_grad():
        said = [model(on_device_of(model, part)).argmax(1).cpu() for part in x.split(BATCH)]
    return torch.cat(said)


def share(mask: Tensor) -> Share:
    """How many of a mask are set; of none, nothing is known."""
    count, n = int(mask.sum()), len(mask)
    low, high = wilson(count, n)
    return Share(count=count, share=count / n if n else 0.0, low=low, high=high)


def _of_class(name: str, here: Tensor, right: Tensor, stable: Tensor) -> ClassStability:
    return ClassStability(
        name=name,
        images=int(here.sum()),
        correct=int((here & right).sum()),
        stable=int((here & stable).sum()),
        correct_and_stable=int((here & right & stable).sum()),
    )
