"""The generalisation bound of arXiv:2209.14105 for an attention block, with and without l1.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization", Theorem 1, after Yin et al., arXiv:1810.11914.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from buttress.analysis.attention_block import AttentionBlock, fit
from buttress.analysis.core import ANALYSES
from buttress.analysis.generalization_bound import (
    MARGIN,
    Norms,
    Sample,
    images_needed,
    norms_of,
    terms,
)
from buttress.analysis.semidefinite import Form, coupling, largest_of, solver
from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.losses import margin
from buttress.data import Dataset, load_dataset
from buttress.errors import UserError
from buttress.progress import Progress, Task
from buttress.spec import Spec
from buttress.threat import Threat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 8  # pixels on a side: the digits as they were scanned
PATCH = 2  # pixels on a side of a token
TINY = 1e-6  # of a margin
GAMMAS = tuple(10 ** (i / 4) for i in range(-8, 25))


class Curve(Spec):
    """The bound against the margin gamma."""

    gammas: tuple[float, ...]
    bounds: tuple[float, ...]


class Bounded(Spec):
    """One trained block: what it does, and the bound term by term."""

    penalty: float
    train_accuracy: float
    test_accuracy: float
    attacked_accuracy: float  # of test images, by PGD
    certified_accuracy: float  # of test images, by the semidefinite limit
    median_margin: float  # of training images
    l1_per_margin: float  # product of l1 norms over that margin: free of the scale of the weights
    norms: Norms
    change: float  # what the semidefinite term takes from a margin
    change_at_least: float  # the same from below: how exactly the problem was solved
    terms: dict[str, float]
    bound: float
    images_needed: float | None
    curve: Curve


class TransformerBound(Spec):
    """Bounds of blocks that were trained alike but for their l1 penalty."""

    eps: float
    gamma: float
    delta: float
    images: int  # to train
    test_images: int
    form: Form
    blocks: tuple[Bounded, ...]


def plot_transformer_bound(results: Mapping[str, TransformerBound], figure: Figure) -> None:
    """The terms of each block as bars on a log scale, and the bound against gamma."""
    left, right = figure.subplots(1, 2)
    shown = [
        (f"{label} l1 {block.penalty:g}".strip(), block)
        for label, result in results.items()
        for block in result.blocks
    ]
    width = 0.8 / len(shown)
    for index, (label, block) in enumerate(shown):
        values = {**block.terms, "bound": block.bound}
        places = [i + index * width for i in range(len(values))]
        left.bar(places, [max(v, 1e-6) for v in values.values()], width, label=label)
        right.plot(block.curve.gammas, block.curve.bounds, label=label)
    left.set_xticks([i + 0.4 - width / 2 for i in range(len(values))], list(values))
    left.tick_params(axis="x", labelsize="small")
    left.set(yscale="log", title=f"terms at gamma {next(iter(results.values())).gamma:g}")
    right.set(xscale="log", yscale="log", xlabel="gamma", title="bound on the error under attack")
    for axis in (left, right):
        axis.axhline(1, color="black", linestyle=":")
    right.annotate("1: says nothing above", (0.02, 1.2), xycoords=("axes fraction", "data"))
    right.legend(fontsize="small")


def says_transformer_bound(result: TransformerBound) -> str:
    """What the bounds say, and what they do not."""
    said = "; ".join(
        f"l1 penalty {b.penalty:g}: {b.bound:.3g}, {b.test_accuracy:.1%} clean, "
        f"{b.attacked_accuracy:.1%} attacked, {b.certified_accuracy:.1%} certified"
        for b in result.blocks
    )
    loose = sum(b.bound >= 1 for b in result.blocks)
    parts = [f"Bound on the error under attack, and accuracy on test images: {said}."]
    if loose:
        who = "Every bound" if loose == len(result.blocks) else f"{loose} of the bounds"
        parts.append(f"{who} is above 1 and so says nothing about the error itself.")
    if len(result.blocks) > 1:
        least = min(result.blocks, key=lambda b: b.bound)
        best = max(result.blocks, key=lambda b: b.attacked_accuracy)
        agrees = "the same block holds" if least is best else f"penalty {best.penalty:g} holds"
        parts.append(f"It is smallest for penalty {least.penalty:g}; {agrees} best under attack.")
    return " ".join(parts)


def cost_transformer_bound(
    *, penalties: Sequence[float], steps: int, limit: int | None, **_: Any
) -> str:
    """Training, and one semidefinite problem for each output at most."""
    train = load_dataset("digits", "train", limit=limit, image_size=SIZE)
    block = AttentionBlock(SIZE, PATCH, train.num_classes, seed=0)
    rows = 1 + sum(block.inner().shape)
    return (
        f"{len(penalties)} blocks trained for {steps} steps on {len(train):,} images, and for each "
        f"up to {train.num_classes} semidefinite problems of {rows} rows"
    )


@dataclass(frozen=True)
class Setting:
    """What all blocks share."""

    train: Dataset
    test: Dataset
    eps: float
    gamma: float
    delta: float
    form: Form
    steps: int


@ANALYSES.register(
    "transformer_bound",
    paper="arXiv:2209.14105",
    tags=("bound", "theory"),
    result=TransformerBound,
    plot=plot_transformer_bound,
    cost=cost_transformer_bound,
    says=says_transformer_bound,
    standalone=True,
)
def transformer_bound(
    progress: Progress,
    *,
    penalties: Sequence[float] = (0.0, 1e-3, 3e-3),
    eps: float | None = None,
    gamma: float = 1.0,
    form: Form = "valid",
    steps: int = 400,
    limit: int | None = None,
) -> TransformerBound:
    """Generalisation bound of a one-block attention network that is trained here on digits.

    Blocks are trained alike but for the penalty on the l1 norms of their two matrices. ``eps`` is
    the usual Linf budget of the data if not given; ``gamma`` is a margin chosen before looking;
    ``form="printed"`` takes the matrix of the paper, which is no limit (see `coupling`).
    """
    solver()  # says at once if it is not installed
    setting = _setting(eps, gamma, form, steps, limit)
    if not penalties or min(penalties) < 0:
        raise UserError(f"`penalties` must be numbers of 0 or more, but got {penalties!r}")
    task = progress.task("transformer_bound", len(penalties) * (1 + setting.train.num_classes))
    blocks = tuple(_bounded(setting, float(penalty), task) for penalty in penalties)
    task.close()
    return TransformerBound(
        eps=setting.eps,
        gamma=gamma,
        delta=setting.delta,
        images=len(setting.train),
        test_images=len(setting.test),
        form=form,
        blocks=blocks,
    )


def _setting(eps: float | None, gamma: float, form: Form, steps: int, limit: int | None) -> Setting:
    train, test = (
        load_dataset("digits", s, limit=limit, image_size=SIZE) for s in ("train", "test")
    )
    if form not in get_args(Form):
        raise UserError(f"`form` must be one of {', '.join(get_args(Form))}, but got {form!r}")
    if not gamma > 0 or not steps > 0:
        raise UserError(f"`gamma > 0` and `steps > 0` must hold, but got {gamma!r} and {steps!r}")
    eps = train.budgets["Linf"] if eps is None else eps
    if not (math.isfinite(eps) and eps > 0):
        raise UserError(f"`eps > 0` must hold, but got eps={eps!r}")
    return Setting(train, test, eps, gamma, 0.05, form, steps)


def _bounded(setting: Setting, penalty: float, task: Task) -> Bounded:
    block = AttentionBlock(SIZE, PATCH, setting.train.num_classes, seed=0)
    fit(block, setting.train, penalty=penalty, steps=setting.steps)
    task.advance(1, note=f"l1 {penalty:g}: trained")
    with torch.no_grad():
        inner, outer = block.inner().double(), block.head.detach().double()
    least, most = _change(inner, outer, setting, task)
    x, y, _ = setting.train.take(torch.arange(len(setting.train)))
    with torch.no_grad():
        flat, margins = block.flat(x).double(), -margin(block(x), y).double()
    norms = norms_of(inner, outer)
    width = max(*inner.shape, len(outer))
    squares = float(flat.square().sum(1).mean())
    sample = Sample(len(x), squares, width, setting.eps, setting.delta)
    at = terms(norms, sample, setting.gamma, share(margins, setting.gamma + most))
    bounds = (sum(terms(norms, sample, g, share(margins, g + most)).values()) for g in GAMMAS)
    return Bounded(
        penalty=penalty,
        **_accuracies(block, setting, margins, most),
        median_margin=float(margins.median()),
        l1_per_margin=norms.inner_l1 * norms.outer_l1 / max(float(margins.median()), TINY),
        norms=norms,
        change=most,
        change_at_least=least,
        terms=at,
        bound=sum(at.values()),
        images_needed=images_needed(norms, sample, setting.gamma, at[MARGIN]),
        curve=Curve(gammas=GAMMAS, bounds=tuple(bounds)),
    )


def _change(inner: Tensor, outer: Tensor, setting: Setting, task: Task) -> tuple[float, float]:
    """The most that a margin can lose by eps, from below and from above, over all outputs."""
    matrices = [coupling(row, inner.numpy(), setting.form) for row in outer.numpy()]
    value = largest_of(matrices, lambda: task.advance(1, note="semidefinite terms"))
    return setting.eps / 2 * value.lower, setting.eps / 2 * value.upper


def _accuracies(
    block: AttentionBlock, setting: Setting, margins: Tensor, change: float
) -> dict[str, float]:
    x, y, ids = setting.test.take(torch.arange(len(setting.test)))
    threat = Threat("Linf", setting.eps)
    broken = run_attack(create_attack("pgd"), block, x, y, threat, ids=ids, how=How(0)).broken
    with torch.no_grad():
        on_test = -margin(block(x), y).double()
    return {
        "train_accuracy": 1 - share(margins, 0.0),
        "test_accuracy": 1 - share(on_test, 0.0),
        "attacked_accuracy": 1 - float(broken.double().mean()),
        "certified_accuracy": 1 - share(on_test, change),
    }


def share(margins: Tensor, limit: float) -> float:
    """The share of margins that are not above a limit."""
    return float((margins <= limit).double().mean())
