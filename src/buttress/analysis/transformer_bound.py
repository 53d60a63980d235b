"""Generalization bound of arXiv:2209.14105 for an attention block, with and without l1.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization", Theorem 1, after Yin et al., arXiv:1810.11914.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult, Count, PositiveFloat
from buttress.analysis.figures import Figure
from buttress.analysis.methods.generalization_bound import (
    MARGIN,
    BlockNorms,
    BoundAttentionBlock,
    BoundSample,
    block_norms,
    bound_terms,
    images_needed,
    train_block,
)
from buttress.analysis.methods.semidefinite import (
    CouplingForm,
    coupling_matrix,
    import_cvxpy,
    solve_relaxations,
)
from buttress.analysis.uncertainty import SampleUnits, StoredSamples, UncertaintyNote
from buttress.attacks.core import create_attack
from buttress.attacks.losses import margin
from buttress.config import Spec
from buttress.data import Dataset, load_dataset
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.system.progress import Progress, ProgressTask
from buttress.threats.norm_ball import NormBall

IMAGE_SIZE = 8  # pixels on a side: the digits as they were scanned
PATCH = 2  # pixels on a side of a token
MIN_MARGIN = 1e-6  # of a margin
BOUND_ONLY = UncertaintyNote(
    pattern="*", varies_by="none", reason="a bound holds with probability 1 - delta as it is"
)
NonnegativeFloat = Annotated[float, Ge(0)]
GAMMAS = tuple(10 ** (i / 4) for i in range(-8, 25))


class BoundCurve(Spec):
    """The bound against the margin gamma."""

    gammas: tuple[float, ...]
    bounds: tuple[float, ...]


class BlockBound(Spec):
    """One trained block: what it does, and the bound term by term."""

    penalty: float
    train_accuracy: float
    test_accuracy: float
    robust_accuracy: float  # of test images, by PGD
    certified_accuracy: float  # of test images, by the semidefinite limit
    median_margin: float  # of training images
    l1_per_margin: float  # product of l1 norms over that margin: free of the scale of the weights
    norms: BlockNorms
    margin_change: float  # what the semidefinite term takes from a margin
    margin_change_lower: float  # the same from below: how exactly the problem was solved
    terms: dict[str, float]
    bound: float
    images_needed: float | None
    curve: BoundCurve


class TransformerBoundResult(AnalysisResult):
    """Bounds of blocks that were trained alike but for their l1 penalty."""

    eps: float
    gamma: float
    delta: float
    images: int  # to train
    test_images: int
    form: CouplingForm
    blocks: tuple[BlockBound, ...]

    @staticmethod
    def plot(results: Mapping[str, TransformerBoundResult], figure: Figure) -> None:
        """The terms of each block as bars on a log scale, and the bound against gamma."""
        left, right = figure.subplots(1, 2)
        rows = [
            (f"{label} l1 {block.penalty:g}".strip(), block)
            for label, result in results.items()
            for block in result.blocks
        ]
        width = 0.8 / len(rows)
        for index, (label, block) in enumerate(rows):
            values = {**block.terms, "bound": block.bound}
            places = [i + index * width for i in range(len(values))]
            left.bar(places, [max(v, 1e-6) for v in values.values()], width, label=label)
            right.plot(block.curve.gammas, block.curve.bounds, label=label)
        left.set_xticks([i + 0.4 - width / 2 for i in range(len(values))], list(values))
        left.tick_params(axis="x", labelsize="small")
        left.set(yscale="log", title=f"terms at gamma {next(iter(results.values())).gamma:g}")
        right.set(
            xscale="log", yscale="log", xlabel="gamma", title="bound on the error under attack"
        )
        for axis in (left, right):
            axis.axhline(1, color="black", linestyle=":")
        right.annotate("1: vacuous above", (0.02, 1.2), xycoords=("axes fraction", "data"))
        right.legend(fontsize="small")

    def summary(self) -> str:
        """Summarize the bounds."""
        sentence = "; ".join(
            f"l1 penalty {b.penalty:g}: {b.bound:.3g}, {b.test_accuracy:.1%} clean, "
            f"{b.robust_accuracy:.1%} attacked, {b.certified_accuracy:.1%} certified"
            for b in self.blocks
        )
        loose = sum(b.bound >= 1 for b in self.blocks)
        parts = [f"Bound on the error under attack, and accuracy on test images: {sentence}."]
        if loose:
            which_bounds = "Every bound" if loose == len(self.blocks) else f"{loose} of the bounds"
            parts.append(f"{which_bounds} is above 1 and therefore vacuous.")
        if len(self.blocks) > 1:
            least = min(self.blocks, key=lambda b: b.bound)
            best = max(self.blocks, key=lambda b: b.robust_accuracy)
            agrees = "the same block has" if least is best else f"penalty {best.penalty:g} has"
            parts.append(
                f"It is smallest for penalty {least.penalty:g}; {agrees} the highest robust "
                "accuracy."
            )
        return " ".join(parts)


def transformer_bound_cost(
    *, penalties: Sequence[float], steps: int, limit: int | None, **_: Any
) -> str:
    """Training, and one semidefinite problem for each output at most."""
    train = load_dataset("digits", "train", limit=limit, image_size=IMAGE_SIZE)
    block = BoundAttentionBlock(IMAGE_SIZE, PATCH, train.num_classes, seed=0)
    rows = 1 + sum(block.inner_matrix().shape)
    return (
        f"{len(penalties)} blocks trained for {steps} steps on {len(train):,} images, and for each "
        f"up to {train.num_classes} semidefinite problems of {rows} rows"
    )


@dataclass(frozen=True)
class BoundSetting:
    """Settings that all blocks share."""

    train: Dataset
    test: Dataset
    eps: float
    gamma: float
    delta: float
    form: CouplingForm
    steps: int


@ANALYSES.register(
    "transformer_bound",
    paper="arXiv:2209.14105",
    tags=("bound", "theory"),
    cost=transformer_bound_cost,
    subject="none",
    example_args={"penalties": (0.0,), "limit": 20, "steps": 5},
    uncertainty=(BOUND_ONLY,),
)
def transformer_bound(
    progress: Progress,
    *,
    penalties: Annotated[tuple[NonnegativeFloat, ...], MinLen(1)] = (0.0, 1e-3, 3e-3),
    eps: PositiveFloat | None = None,
    gamma: PositiveFloat = 1.0,
    form: CouplingForm = "valid",
    steps: Count = 400,
    limit: int | None = None,
) -> TransformerBoundResult:
    """Generalization bound of a one-block attention model, trained on digits.

    Blocks are trained alike but for the penalty on the l1 norms of their two matrices. ``eps`` is
    the usual Linf budget of the data if not given; ``gamma`` is a margin chosen before looking;
    ``form="printed"`` takes the matrix of the paper, which is no limit (see `coupling_matrix`).
    """
    import_cvxpy()  # fails early if it is not installed
    setting = _create_setting(eps, gamma, form, steps, limit)
    task = progress.add_task("transformer_bound", len(penalties) * (1 + setting.train.num_classes))
    pairs = [_bound_block(setting, float(penalty), task) for penalty in penalties]
    task.close()
    return TransformerBoundResult(
        eps=setting.eps,
        gamma=gamma,
        delta=setting.delta,
        images=len(setting.train),
        test_images=len(setting.test),
        form=form,
        blocks=tuple(block for block, _ in pairs),
        samples={
            f"blocks[{number}].{name}": figure
            for number, (_, figures) in enumerate(pairs)
            for name, figure in figures.items()
        },
    )


def _create_setting(
    eps: float | None, gamma: float, form: CouplingForm, steps: int, limit: int | None
) -> BoundSetting:
    train, test = (
        load_dataset("digits", s, limit=limit, image_size=IMAGE_SIZE) for s in ("train", "test")
    )
    eps = train.budgets["Linf"] if eps is None else eps
    return BoundSetting(train, test, eps, gamma, 0.05, form, steps)


def _bound_block(
    setting: BoundSetting, penalty: float, task: ProgressTask
) -> tuple[BlockBound, dict[str, StoredSamples]]:
    """The bound of one trained block, and the samples of its accuracies."""
    block = BoundAttentionBlock(IMAGE_SIZE, PATCH, setting.train.num_classes, seed=0)
    train_block(block, setting.train, penalty=penalty, steps=setting.steps)
    task.advance(1, note=f"l1 {penalty:g}: trained")
    with torch.no_grad():
        inner, outer = block.inner_matrix().double(), block.head.detach().double()
    change_lower, change_upper = _margin_change(inner, outer, setting, task)
    x, y, _ = setting.train.take(torch.arange(len(setting.train)))
    with torch.no_grad():
        flat, margins = block.flatten_images(x).double(), -margin(block(x), y).double()
    norms = block_norms(inner, outer)
    width = max(*inner.shape, len(outer))
    squares = float(flat.square().sum(1).mean())
    sample = BoundSample(len(x), squares, width, setting.eps, setting.delta)
    terms_at_gamma = bound_terms(
        norms, sample, setting.gamma, fraction_below(margins, setting.gamma + change_upper)
    )
    bounds = (
        sum(bound_terms(norms, sample, g, fraction_below(margins, g + change_upper)).values())
        for g in GAMMAS
    )
    is_correct = _correct_images(block, setting, margins, change_upper)
    bound = BlockBound(
        penalty=penalty,
        **{name: 1 - float((~flags).double().mean()) for name, flags in is_correct.items()},
        median_margin=float(margins.median()),
        l1_per_margin=norms.inner_l1 * norms.outer_l1 / max(float(margins.median()), MIN_MARGIN),
        norms=norms,
        margin_change=change_upper,
        margin_change_lower=change_lower,
        terms=terms_at_gamma,
        bound=sum(terms_at_gamma.values()),
        images_needed=images_needed(norms, sample, setting.gamma, terms_at_gamma[MARGIN]),
        curve=BoundCurve(gammas=GAMMAS, bounds=tuple(bounds)),
    )
    units = {len(flags): SampleUnits(range(len(flags))) for flags in is_correct.values()}
    return bound, {n: units[len(flags)].store(flags) for n, flags in is_correct.items()}


def _margin_change(
    inner: Tensor, outer: Tensor, setting: BoundSetting, task: ProgressTask
) -> tuple[float, float]:
    """The most that a margin can lose by eps, from below and from above, over all outputs."""
    matrices = [coupling_matrix(row, inner.numpy(), setting.form) for row in outer.numpy()]
    value = solve_relaxations(matrices, lambda: task.advance(1, note="semidefinite terms"))
    return setting.eps / 2 * value.lower, setting.eps / 2 * value.upper


def _correct_images(
    block: BoundAttentionBlock, setting: BoundSetting, margins: Tensor, change: float
) -> dict[str, Tensor]:
    """Which images each accuracy counts; ``margins`` are of the training images."""
    x, y, ids = setting.test.take(torch.arange(len(setting.test)))
    threat, options = NormBall("Linf", setting.eps), AttackOptions(0)
    out = run_attack(create_attack("pgd"), block, x, y, threat, ids=ids, options=options)
    with torch.no_grad():
        on_test = -margin(block(x), y).double()
    return {
        "train_accuracy": margins > 0.0,
        "test_accuracy": on_test > 0.0,
        "robust_accuracy": ~out.fooled,
        "certified_accuracy": on_test > change,
    }


def fraction_below(margins: Tensor, threshold: float) -> float:
    """The share of margins that are not above a limit."""
    return float((margins <= threshold).double().mean())
