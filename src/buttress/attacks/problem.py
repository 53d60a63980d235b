"""The problem that an attack solves: maximize a loss of a model over what a threat allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from buttress.attacks.losses import is_misclassified
from buttress.system.rng import SampleRNG
from buttress.threats.core import SearchSet, Space, Threat
from buttress.threats.norm_ball import NORMS, TINY, NormBall
from buttress.threats.parametric import ParametricThreat

if TYPE_CHECKING:
    from buttress.attacks.core import Attack


class ModelOutput(NamedTuple):
    """Logits, loss and gradient at a point."""

    logits: Tensor  # (N, K)
    loss: Tensor  # (N,)
    grad: Tensor | None  # of the shape of the points, of the summed loss
    # (N,) misclassified in every pass, where several were averaged; None: judge by the logits
    always_misclassified: Tensor | None = None


@dataclass
class PassCounter:
    """Counts of passes and of numerical faults, per sample of the whole problem."""

    forward: Tensor  # (N,) int64
    backward: Tensor
    non_finite: Tensor  # (N,) bool: a loss or gradient was not finite
    zero_gradient: Tensor  # (N,) bool: every gradient so far was zero
    stages_run: Tensor  # (N,) int64: bit k is set if stage k of an ensemble attacked the sample
    stages_skipped: Tensor  # (N,) int64: bit k is set if stage k skipped the sample

    @classmethod
    def zeros(cls, n: int, device: torch.device) -> PassCounter:
        zero = torch.zeros(n, dtype=torch.int64, device=device)
        false = torch.zeros(n, dtype=torch.bool, device=device)
        return cls(zero, zero.clone(), false, ~false, zero.clone(), zero.clone())

    def add_rows(self, rows: Tensor, other: PassCounter) -> None:
        """Adds the counts of a second search on some rows."""
        self.forward[rows] += other.forward
        self.backward[rows] += other.backward
        self.stages_run[rows] |= other.stages_run
        self.stages_skipped[rows] |= other.stages_skipped
        self.non_finite[rows] |= other.non_finite
        self.zero_gradient[rows] &= other.zero_gradient

    def count_forward(
        self, index: RowIndex, is_non_finite: Tensor, passes: Tensor | int = 1
    ) -> None:
        """Forward passes; a sample may be in several rows."""
        _add_at(self.forward, index, passes)
        self._mark_non_finite(index, is_non_finite)

    def count_backward(self, index: RowIndex, grad_l1: Tensor, passes: int = 1) -> None:
        """Backward passes whose gradients have these L1 norms."""
        _add_at(self.backward, index, passes)
        self._mark_non_finite(index, ~grad_l1.isfinite())
        if isinstance(index, slice):
            self.zero_gradient[index] &= grad_l1 == 0
        else:
            self.zero_gradient &= ~_any_row(index, grad_l1 != 0, len(self.zero_gradient))

    def _mark_non_finite(self, index: RowIndex, is_non_finite: Tensor) -> None:
        if is_non_finite.device.type == "cpu" and not is_non_finite.any():
            return
        if isinstance(index, slice):
            self.non_finite[index] |= is_non_finite
        else:
            self.non_finite |= _any_row(index, is_non_finite, len(self.non_finite))


def _any_row(index: Tensor, mask: Tensor, n: int) -> Tensor:
    """(n,) whether a row of each sample is set, without a wait for the device."""
    return (
        torch.zeros(n, dtype=torch.int32, device=mask.device).index_add_(0, index, mask.int()) > 0
    )


def _add_at(total: Tensor, index: RowIndex, passes: Tensor | int) -> None:
    if isinstance(index, slice):
        total[index] += passes
    else:
        counts = passes if isinstance(passes, Tensor) else torch.full_like(index, passes)
        total.index_add_(0, index, counts)


LossFn = Callable[[Tensor], Tensor]  # logits (N, K) -> loss (N,)
RowIndex = Tensor | slice  # a slice where rows are neighbors: many times faster
ALL_ROWS = slice(None)


@dataclass(frozen=True)
class Problem:
    """A batch of points, the model that their images are to fool, and the set they move in.

    Points are the images themselves. For a parametric threat they are its parameters: `pose` makes
    such a problem, with a norm ball of parameters in place of the threat.
    """

    model: nn.Module
    x: Tensor  # (N, C, H, W) in [0, 1]: the clean points
    y: Tensor  # (N,)
    threat: SearchSet
    rng: SampleRNG
    clean_logits: Tensor | None = None  # (N, K) logits of x, once computed
    target_order: Tensor | None = None  # (N, K - 1) other classes, the nearest first, if known
    run_mask: Tensor | None = None  # (N, runs) bool: which runs to make, if not all
    counter: PassCounter | None = None
    sample_rows: Tensor | None = field(default=None, repr=False)
    parametric: ParametricThreat | None = None  # makes images of points
    images: Tensor | None = field(default=None, repr=False)  # (N, ...) the clean images it changes
    saturating_batch: int = 128  # rows that saturate the CPU: a larger batch is no faster
    eot_samples: int = 1  # passes averaged at each point, for randomized models
    # Runs another attack on a problem and returns its points; set by the engine.
    run_attack: Callable[[Attack, Problem], Tensor] | None = field(default=None, repr=False)

    @classmethod
    def pose(
        cls,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        rng: SampleRNG,
        clean_logits: Tensor | None = None,
    ) -> Problem:
        """The problem of any threat model, for images ``x``."""
        if isinstance(threat, ParametricThreat):
            problem = cls(model, threat.center(x), y, threat.region, rng, clean_logits)
            return replace(problem, parametric=threat, images=x)
        assert isinstance(threat, SearchSet)
        return cls(model, x, y, threat, rng, clean_logits)

    @property
    def clean_images(self) -> Tensor:
        """(N, C, H, W) the images without a change."""
        return self.x if self.images is None else self.images

    @property
    def allowed(self) -> Threat:
        """The threat model that the images must obey."""
        return self.parametric or self.threat

    @property
    def space(self) -> Space:
        return self.threat.space

    @property
    def ball(self) -> NormBall:
        """The set as a norm ball, for attacks that move in nothing else."""
        assert isinstance(self.threat, NormBall)
        return self.threat

    def on_images(self) -> Problem:
        """The same samples with images as points, to evaluate images that need no change."""
        return replace(self, x=self.clean_images, parametric=None, images=None)

    def images_at(self, points: Tensor, rows: RowIndex = ALL_ROWS) -> Tensor:
        """The images of points; ``rows`` says which samples those are."""
        if self.parametric is None:
            return points
        return self.parametric.images_at(self.clean_images[rows], points)

    def select(self, rows: Tensor) -> Problem:
        """The same problem for some of its samples."""
        return replace(
            self,
            x=self.x[rows],
            images=None if self.images is None else self.images[rows],
            y=self.y[rows],
            rng=self.rng.select(rows),
            clean_logits=None if self.clean_logits is None else self.clean_logits[rows],
            target_order=None if self.target_order is None else self.target_order[rows],
            run_mask=None if self.run_mask is None else self.run_mask[rows],
            sample_rows=self.counter_rows[rows],
        )

    @property
    def num_classes(self) -> int:
        assert self.clean_logits is not None
        return self.clean_logits.shape[1]

    @property
    def counter_rows(self) -> Tensor:
        """(N,) the rows of these samples in the counter."""
        return self.row_numbers() if self.sample_rows is None else self.sample_rows

    @cached_property
    def counter_index(self) -> RowIndex:
        """The same, as a slice if possible; an accelerator is not waited for to see that."""
        rows = self.counter_rows
        if rows.device.type != "cpu" or not len(rows) or not bool((rows.diff() == 1).all()):
            return rows
        return slice(int(rows[0]), int(rows[-1]) + 1)

    def row_numbers(self, n: int | None = None) -> Tensor:
        """The positions of the first ``n`` samples, of all if not given."""
        return torch.arange(len(self.x) if n is None else n, device=self.x.device)

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor] | None:
        return self.threat.bounds(self.x)

    def project(self, x_t: Tensor, scale: Tensor | None = None) -> Tensor:
        """The nearest points of the set; ``scale`` (N,) enlarges that of each sample."""
        if scale is None and self.bounds is not None:
            return x_t.clamp(*self.bounds)
        return self.threat.project(self.x, x_t, scale)

    def project_(self, x_t: Tensor) -> Tensor:
        """The same in place, where possible."""
        return self.project(x_t) if self.bounds is None else x_t.clamp_(*self.bounds)

    def scale_into_ball_(self, x_t: Tensor) -> Tensor:
        """Displacements scaled into the ball, then clipped to the box; in place, where possible."""
        return self.project_(x_t) if self.bounds else self.threat.scale_into_ball(self.x, x_t)

    def random_start(self, run_index: int | Tensor = 0) -> Tensor:
        return self.threat.random_start(self.x, self.rng, run_index)

    def random_start_on_sphere(self, run_index: Tensor, scale: float = 1.0) -> Tensor:
        """Noise stretched until its norm is ``scale * eps``, cut by the box.

        A random member of sets that are no norm balls.
        """
        if self.space not in NORMS:
            return self.random_start(run_index)
        x, threat = self.x, self.ball
        is_linf = threat.norm == "Linf"
        noise = (
            2 * self.rng.draw_uniform(x, run_index) - 1
            if is_linf
            else self.rng.draw_normal(x, run_index)
        )
        size = threat.perturbation_size(torch.zeros_like(x), noise).to(x.dtype) + TINY
        return (x + noise * (scale * threat.eps / size).view(-1, 1, 1, 1)).clamp_(0, 1)

    def evaluate_at(
        self, x_t: Tensor, loss_fn: LossFn, *, grad: bool | Tensor = True
    ) -> ModelOutput:
        """A forward pass at ``x_t``, and a backward pass to it where the gradient is needed.

        ``grad`` may be a mask of rows; the gradient of the others is zero. For randomized models
        the mean of `eot_samples` passes.
        """
        if isinstance(grad, Tensor):
            num_grads = int(grad.sum())  # the only wait for an accelerator
            if num_grads in (0, len(grad)) or grad.device.type != "cpu":
                grad = num_grads > 0
        outputs = []
        for _ in range(self.eot_samples):
            if isinstance(grad, Tensor):
                outputs.append(self._evaluate_some(x_t, loss_fn, grad))
                continue
            with torch.set_grad_enabled(grad):
                point = x_t.detach().requires_grad_(grad)
                logits = self.model(self.images_at(point))
                loss = loss_fn(logits)
                gradient = input_gradient(loss.sum(), point) if grad else None
            output = ModelOutput(logits.detach(), loss.detach(), gradient)
            outputs.append(self.count_passes(output))
        return self.average_outputs(outputs)

    def average_outputs(self, outputs: Sequence[ModelOutput]) -> ModelOutput:
        """The mean logits, loss and gradient of several passes (EOT, arXiv:1707.07397).

        Nothing is left to gain where every pass misclassifies: only that counts as fooled.
        """
        if len(outputs) == 1:
            return outputs[0]
        logits = torch.stack([output.logits for output in outputs])
        grads = [output.grad for output in outputs if output.grad is not None]
        is_wrong = torch.stack([is_misclassified(draw, self.y) for draw in logits])
        return ModelOutput(
            logits.mean(0),
            torch.stack([output.loss for output in outputs]).mean(0),
            sum(grads[1:], grads[0]) / len(outputs) if grads else None,
            is_wrong.all(0),
        )

    def _evaluate_some(self, x_t: Tensor, score: LossFn, grad_rows: Tensor) -> ModelOutput:
        """Gradients for some rows only: two forward passes, each over its part of the batch."""
        with torch.no_grad():
            logits_without_grad = self.model(self.images_at(x_t[~grad_rows], ~grad_rows))
        with torch.enable_grad():
            point = x_t[grad_rows].detach().requires_grad_(True)
            logits_with_grad = self.model(self.images_at(point, grad_rows))
            logits = logits_with_grad.new_empty(len(x_t), logits_with_grad.shape[1])
            logits = logits.index_put((grad_rows,), logits_with_grad).index_put(
                (~grad_rows,), logits_without_grad
            )
            loss = score(logits)
            row_grads = input_gradient(loss.sum(), point)
        gradient = torch.zeros_like(x_t)
        gradient[grad_rows] = row_grads
        return self.count_passes(ModelOutput(logits.detach(), loss.detach(), gradient), grad_rows)

    def count_passes(
        self, output: ModelOutput, grad_rows: Tensor | None = None, backward_passes: int = 1
    ) -> ModelOutput:
        """Counts the passes of an output; returns it with a finite gradient."""
        grad_l1 = None
        if output.grad is not None:
            grad_l1 = output.grad.flatten(1).abs().sum(1)
            if grad_l1.device.type != "cpu" or not grad_l1.isfinite().all():
                finite_grad = torch.nan_to_num(output.grad, nan=0.0, posinf=0.0, neginf=0.0)
                output = output._replace(grad=finite_grad)
        if self.counter is None:
            return output
        self.counter.count_forward(self.counter_index, ~output.loss.isfinite())
        if grad_l1 is not None and grad_rows is None:
            self.counter.count_backward(self.counter_index, grad_l1, backward_passes)
        elif grad_l1 is not None:
            self.counter.count_backward(
                self.counter_rows[grad_rows], grad_l1[grad_rows], backward_passes
            )
        return output


def input_gradient(total: Tensor, point: Tensor, *, retain_graph: bool = False) -> Tensor:
    """The gradient of ``total``; zero where the model cut the graph."""
    if not total.requires_grad:
        return torch.zeros_like(point)
    (grad,) = torch.autograd.grad(total, point, retain_graph=retain_graph, allow_unused=True)
    return torch.zeros_like(point) if grad is None else grad.detach()
