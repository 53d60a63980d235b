"""Fast adaptive boundary attack (Croce and Hein, arXiv:1907.02044): the nearest boundary.

It ignores eps on its way: a point counts only if it is misclassified and inside the ball.
Constants follow the reference implementation in AutoAttack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, AttackState, broadcast_to_images, check_positive
from buttress.attacks.hyperplane import Hyperplane
from buttress.attacks.losses import targeted_margin
from buttress.attacks.problem import ModelOutput, Problem, input_gradient
from buttress.attacks.targets import choose_target
from buttress.models.cost import PassCount
from buttress.threats.core import Space
from buttress.threats.norm_ball import TINY

ETA = 1.05  # how far beyond the boundary a step goes
BETA = 0.9  # how much of the way is kept once the point is misclassified
PREFILTER_PIXELS = 384  # that are looked at first, to see whether a point is outside the ball
ALPHA_MAX = 0.1  # the largest weight of the step from the clean image


@dataclass
class FABState(AttackState):
    """Per run: the target class, and what the next evaluation is for.

    A step forward is followed by an evaluation without gradient. If the point is misclassified it
    goes back towards the image; there, or where it stayed, the gradient is taken. So all rows of a
    batch need the same at the same time.
    """

    target: Tensor
    num_forward_steps: Tensor  # (N,) steps forward so far
    is_forward_point: Tensor  # (N,) the current point is a step forward, not a step back
    requests_grad: Tensor  # (N,) the gradient is needed there


@dataclass(frozen=True)
class FABBase(Attack):
    """Steps to the nearest boundary of the linear model, and back."""

    has_forward_only_passes: ClassVar[bool] = True
    steps: int = 100
    restarts: int = 1

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)

    @property
    def max_steps(self) -> int:
        return 2 * self.steps  # a round has two evaluations

    def passes_per_run(self, space: Space, num_classes: int) -> PassCount:
        return PassCount(2 * self.steps, self.steps)  # each step looks at its start and its end

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def target_classes(self, problem: Problem, run_index: Tensor) -> Tensor:
        """(N,) the class whose boundary is approached; the label if it changes at each step."""
        return problem.y

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        assert isinstance(state, FABState)
        return targeted_margin(logits, problem.y, state.target)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        is_restart, start = run_index % self.restarts > 0, problem.x
        if is_restart.any():
            start = problem.random_start_on_sphere(run_index, 0.5).where(
                broadcast_to_images(is_restart), start
            )
        false = torch.zeros_like(is_restart)
        return FABState(
            start.clone(),
            self.target_classes(problem, run_index),
            num_forward_steps=torch.zeros_like(run_index),
            is_forward_point=false,
            requests_grad=~false,
        )

    def grad_mask(self, state: AttackState) -> bool | Tensor:
        assert isinstance(state, FABState)
        return state.requests_grad

    def valid_mask(self, problem: Problem, state: AttackState, fooled: Tensor) -> Tensor | None:
        # Most points are far outside: only those that rounding could decide are measured exactly.
        threat, x, x_t = problem.ball, problem.x, state.x_t
        if x.device.type != "cpu":  # which those are is not waited for
            return fooled & (threat.perturbation_size(x, x_t) <= threat.eps)
        rows = fooled.nonzero()[:, 0]
        pixels = PREFILTER_PIXELS if threat.norm == "Linf" else None  # one is enough to be outside
        delta = x_t.flatten(1)[:, :pixels][rows] - x.flatten(1)[:, :pixels][rows]
        rows = rows[threat.norm_of(delta) <= 1.001 * threat.eps]
        is_inside = threat.perturbation_size(x[rows], x_t[rows]) <= threat.eps
        return torch.zeros_like(fooled).index_put_((rows,), is_inside)

    def finished_mask(self, state: AttackState) -> Tensor | None:
        assert isinstance(state, FABState)
        return state.num_forward_steps >= self.steps

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, FABState)
        x, x_t = problem.x, state.x_t
        steps_back = state.is_forward_point & (output.logits.argmax(1) != problem.y)
        steps_forward = state.requests_grad & ~steps_back
        is_accelerator = x.device.type != "cpu"
        if not is_accelerator and steps_forward.all():
            x_next = self.forward_step(problem, x, x_t, output)
        else:
            x_next = torch.lerp(
                x, x_t, broadcast_to_images(torch.where(steps_back, BETA, 1.0).to(x.dtype))
            )
            if is_accelerator and output.grad is not None:
                x_forward = self.forward_step(problem, x, x_t, output)
                x_next = x_forward.where(broadcast_to_images(steps_forward), x_next)
            elif not is_accelerator and steps_forward.any():
                assert output.grad is not None
                forward_output = ModelOutput(
                    output.logits[steps_forward],
                    output.loss[steps_forward],
                    output.grad[steps_forward],
                )
                x_next[steps_forward] = self.forward_step(
                    problem, x[steps_forward], x_t[steps_forward], forward_output
                )
        state.num_forward_steps = state.num_forward_steps + steps_forward.long()
        state.is_forward_point = steps_forward
        state.requests_grad = ~steps_forward
        return x_next

    def forward_step(self, problem: Problem, x: Tensor, x_t: Tensor, output: ModelOutput) -> Tensor:
        """One step across the boundary of the linear model."""
        assert output.grad is not None
        grad, current, clean = output.grad.flatten(1), x_t.flatten(1), x.flatten(1)
        plane, loss = Hyperplane(problem.ball.norm, grad), output.loss
        clean_loss = loss + torch.linalg.vecdot(grad, clean - current)
        d1, d2 = plane.step_lengths(current, loss), plane.step_lengths(clean, clean_loss)
        current_distance, clean_distance = (
            plane.norm_of_lengths(d).clamp_min_(1e-8) for d in (d1, d2)
        )
        alpha = (current_distance / (current_distance + clean_distance)).clamp_max(ALPHA_MAX)[
            :, None
        ]
        # (1 - alpha) (x_t + 1.05 d1) + alpha (x + 1.05 d2), with the signs put in at the end
        d1.mul_((alpha - 1) * loss.sign()[:, None] * ETA)
        d1.addcmul_(d2, -alpha * clean_loss.sign()[:, None] * ETA)
        return torch.lerp(current, clean, alpha).addcmul_(d1, plane.sign).clamp_(0, 1).view_as(x)


@ATTACKS.register("fab-t", paper="arXiv:1907.02044", tags=("white_box", "iterative", "targeted"))
@dataclass(frozen=True)
class FABT(FABBase):
    r"""FAB towards each of the ``targets`` most likely other classes.

    With :math:`f = z_t - z_y` linear around the point, x_t and x are both projected onto
    :math:`\{f = 0\} \cap [0,1]^d` in the norm of the threat, which gives d_1 and d_2:

    .. math:: x_{t+1} = (1-\alpha)(x_t + 1.05\,d_1) + \alpha\,(x + 1.05\,d_2), \quad
              \alpha = \min\Bigl(\tfrac{\lVert d_1 \rVert}{\lVert d_1 \rVert + \lVert d_2 \rVert},
              0.1\Bigr)

    A misclassified point goes back to :math:`x + 0.9\,(x_{t+1} - x)`. The first run of a class
    starts at the image, restarts at a random point of half the radius. As in the reference there is
    no final search on the boundary.

    Departure: a run ends once a point inside the ball is misclassified.
    """

    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(targets=self.targets)

    def num_runs(self, num_classes: int) -> int:
        return min(self.targets, num_classes - 1) * self.restarts

    def target_classes(self, problem: Problem, run_index: Tensor) -> Tensor:
        return choose_target(problem, "each", run_index // self.restarts)


@ATTACKS.register("fab", paper="arXiv:1907.02044", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class FAB(FABBase):
    r"""FAB towards the class whose boundary is nearest in the linear model.

    At each point it is the class k that minimizes :math:`|z_k - z_y| / \lVert \nabla (z_k - z_y)
    \rVert_*`, which costs one backward pass per class.
    """

    restarts: int = 5

    def passes_per_run(self, space: Space, num_classes: int) -> PassCount:
        return PassCount(2 * self.steps, self.steps * num_classes)

    def evaluate(self, problem: Problem, state: AttackState) -> ModelOutput:
        assert isinstance(state, FABState)
        if not state.requests_grad.any():
            return problem.evaluate_at(state.x_t, lambda z: z[:, 0] * 0, grad=False)
        passes = range(problem.eot_samples)
        return problem.average_outputs([self._nearest_boundary(problem, state.x_t) for _ in passes])

    def _nearest_boundary(self, problem: Problem, x_t: Tensor) -> ModelOutput:
        """Margin and gradient of the class whose boundary is nearest."""
        with torch.enable_grad():
            point = x_t.detach().requires_grad_(True)
            logits = problem.model(problem.images_at(point))
            label_logits = logits.gather(1, problem.y[:, None])
            margins = logits - label_logits
            min_distance = torch.full_like(label_logits[:, 0], torch.inf)
            loss, nearest_grad = torch.zeros_like(min_distance), torch.zeros_like(point)
            for k in range(logits.shape[1]):
                grad = input_gradient(margins[:, k].sum(), point, retain_graph=True)
                distance = margins[:, k].detach().abs() / (problem.ball.dual_norm(grad) + TINY)
                distance = distance.masked_fill(problem.y == k, torch.inf)
                is_closer = (distance < min_distance) | distance.isnan()  # NaN must be reported
                min_distance = distance.where(is_closer, min_distance)
                loss = margins[:, k].detach().where(is_closer, loss)
                nearest_grad = grad.where(broadcast_to_images(is_closer), nearest_grad)
        return problem.count_passes(
            ModelOutput(logits.detach(), loss, nearest_grad), backward_passes=logits.shape[1]
        )
