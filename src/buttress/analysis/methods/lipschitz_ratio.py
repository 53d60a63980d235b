"""Empirical Lipschitz constants: output change per input distance, along attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from buttress.analysis.methods.spectral_norms import forward_hooks
from buttress.analysis.subject import AnalysisSubject
from buttress.attacks.core import Attack, AttackState, attack_name, broadcast_to_images
from buttress.attacks.pgd import ProjectedGradientAttack
from buttress.attacks.problem import LossFn, ModelOutput, Problem
from buttress.data import Batch, Dataset
from buttress.engine.ensemble import run_ensemble
from buttress.engine.options import AttackOptions
from buttress.errors import UserError
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.system.progress import ProgressTask, fraction_callback
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import TOLERANCE, Norm, NormBall

LOGITS = "logits"
BATCH = 64  # images whose outputs in every block are held at once
# Pairs of norms, of the output and of the input: the published one, and that of spectral norms.
NORM_PAIRS: tuple[tuple[Norm, Norm], ...] = (("L1", "Linf"), ("L2", "L2"))
OUTPUT_NORM: dict[Norm, Norm] = {of_input: of_output for of_output, of_input in NORM_PAIRS}


@dataclass(frozen=True)
class OutputHooks:
    """Hooks on the outputs of some modules and the logits of a model."""

    model: nn.Module
    modules: dict[str, nn.Module]

    def outputs(self, x: Tensor) -> dict[str, Tensor]:
        """(N, ...) what each place gives; a module that gives no tensor is left out."""
        outputs: dict[str, Tensor] = {}

        def record(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                first = output[0] if isinstance(output, (tuple, list)) and output else output
                if isinstance(first, Tensor) and len(first) == len(x):
                    outputs[name] = first.detach().clone()  # later layers may write into it

            return hook

        with torch.no_grad(), forward_hooks({m: record(n) for n, m in self.modules.items()}):
            outputs[LOGITS] = self.model(x)
        return {name: outputs[name] for name in (*self.modules, LOGITS) if name in outputs}


@dataclass
class RatioTracker:
    """The largest ratio of each image of a batch so far, at each place and in each pair."""

    hooks: OutputHooks
    x: Tensor
    threat: NormBall
    clean: dict[str, Tensor] = field(init=False)
    largest: dict[str, Tensor] = field(init=False)  # (pairs, N)

    def __post_init__(self) -> None:
        self.clean = self.hooks.outputs(self.x)
        self.largest = {name: self.x.new_zeros(len(NORM_PAIRS), len(self.x)) for name in self.clean}

    def ratios(self, x_t: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """(pairs, n) ratios at points; zero for a point that did not move or left the ball."""
        delta = x_t - self.x[rows]
        allowed = self.threat.norm_of(delta) <= self.threat.eps * (1 + TOLERANCE) + 1e-7
        ratios = {}
        for name, output in self.hooks.outputs(x_t).items():
            change = output - self.clean[name][rows]
            pairs = [
                _vector_norm(change, out) / _vector_norm(delta, into) for out, into in NORM_PAIRS
            ]
            valid = [r.where(allowed & r.isfinite(), 0.0) for r in pairs]
            ratios[name] = torch.stack(valid).to(self.x)
        return ratios

    def update(self, x_t: Tensor, rows: Tensor) -> None:
        """Keep the larger ratios; a sample may be in several rows."""
        for name, ratios in self.ratios(x_t, rows).items():
            index = rows.expand_as(ratios)
            self.largest[name].scatter_reduce_(1, index, ratios, "amax")


def _vector_norm(delta: Tensor, norm: Norm) -> Tensor:
    return NormBall(norm, 0.0).norm_of(delta)


@dataclass(frozen=True)
class TrackedProblem(Problem):
    """A problem that records every point an attack evaluates."""

    tracker: RatioTracker | None = field(default=None, repr=False)

    def evaluate_at(
        self, x_t: Tensor, loss_fn: LossFn, *, grad: bool | Tensor = True
    ) -> ModelOutput:
        output = super().evaluate_at(x_t, loss_fn, grad=grad)
        if self.tracker is not None:
            self.tracker.update(
                x_t, self.row_numbers() if self.sample_rows is None else self.sample_rows
            )
        return output


@dataclass
class RatioAscentState(AttackState):
    """The current points, and the share of eps that each may move by."""

    radius: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass(frozen=True)
class RatioAscent(ProjectedGradientAttack):
    r"""Ascent on the ratio: :math:`\max_{|x' - x| \le r} |f(x') - f(x)| / r` for several r.

    The output is measured in L1 where the ball is Linf and in L2 where it is L2. Inside a ball of
    radius r = ``radii`` * eps the best point for the numerator is at its border, so each radius
    is one run of gradient ascent on it; small radii come near the norm of the gradient at x.
    """

    radii: tuple[float, ...] = (1.0, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.radii or not all(0 < r <= 1 for r in self.radii):
            raise UserError(f"`radii` must be fractions of eps in (0, 1], but got {self.radii}")

    def num_runs(self, num_classes: int) -> int:
        return len(self.radii)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        radius = torch.tensor(self.radii).to(problem.x)[run_index]
        noise = problem.random_start(run_index) - problem.x
        return RatioAscentState(problem.x + broadcast_to_images(radius) * noise, radius=radius)

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        assert problem.clean_logits is not None
        return _vector_norm(logits - problem.clean_logits, OUTPUT_NORM[problem.ball.norm])

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        assert isinstance(state, RatioAscentState)
        step = self.rel_step * problem.ball.eps * state.radius
        next_x = state.x_t + broadcast_to_images(step) * problem.ball.steepest_direction(
            output.grad
        )
        return problem.project(next_x, state.radius)


@dataclass(frozen=True)
class RatioMeasurements:
    """(pairs, N) ratios of all images at one place."""

    at_attack_result: Tensor  # at the point that the attack returned
    attack_max: Tensor  # the largest along the attack
    ascent_max: Tensor  # the largest along the ascents


@dataclass(frozen=True)
class RatioMeasurement:
    """The attack of the published figure, and the ascents beside it."""

    attack: Attack
    ascent: RatioAscent
    ascent_threats: tuple[NormBall, ...]

    def measure_batch(
        self, subject: AnalysisSubject, hooks: OutputHooks, batch: Batch, task: ProgressTask
    ) -> dict[str, RatioMeasurements]:
        """All ratios of one batch of images."""
        x = to_model_device(subject.model, batch.x)
        y = batch.y.to(x.device)
        images_per_attack = len(x) / (1 + len(self.ascent_threats))

        def track(attack: Attack, threat: NormBall, name: str) -> tuple[RatioTracker, Tensor]:
            tracker = RatioTracker(hooks, x, threat)
            streams = SampleRNG(subject.seed, name, batch.ids)
            problem = TrackedProblem(subject.model, x, y, threat, streams, tracker=tracker)
            on_progress = fraction_callback(task, images_per_attack)
            options = AttackOptions(batch_size=len(x), on_progress=on_progress)
            out = run_ensemble(attack, problem, options)
            return tracker, out.x_adv

        with eval_mode(subject.model):
            attack_tracker, x_adv = track(self.attack, subject.threat, attack_name(self.attack))
            at_end = attack_tracker.ratios(x_adv, torch.arange(len(x), device=x.device))
            attack_tracker.update(x_adv, torch.arange(len(x), device=x.device))
            ascent_trackers = [
                track(self.ascent, threat, f"ratio {threat.norm}")[0]
                for threat in self.ascent_threats
            ]
        return {
            name: RatioMeasurements(
                at_end[name].cpu(),
                attack_tracker.largest[name].cpu(),
                torch.stack([c.largest[name] for c in ascent_trackers]).amax(0).cpu(),
            )
            for name in attack_tracker.largest
        }


def create_measurement(
    subject: AnalysisSubject, attack: Attack, steps: int, radii: tuple[float, ...]
) -> RatioMeasurement:
    """The attack, and an ascent in the input norm of each pair: its own ball, or the usual one."""
    threat, budgets = subject.threat, subject.data.budgets
    threats = tuple(threat if threat.norm == n else NormBall(n, budgets[n]) for _, n in NORM_PAIRS)
    return RatioMeasurement(attack, RatioAscent(steps=steps, radii=tuple(radii)), threats)


def measure_ratios(
    subject: AnalysisSubject, measurement: RatioMeasurement, hooks: OutputHooks, data: Dataset
) -> dict[str, RatioMeasurements]:
    """The ratios of all images at each place."""
    task = subject.progress.add_task("empirical Lipschitz constants", len(data))
    per_batch = [
        measurement.measure_batch(subject, hooks, batch, task) for batch in data.batches(BATCH)
    ]
    task.close()

    def concatenate(name: str) -> Iterator[Tensor]:
        for part in ("at_attack_result", "attack_max", "ascent_max"):
            yield torch.cat([getattr(f[name], part) for f in per_batch], dim=1)

    return {name: RatioMeasurements(*concatenate(name)) for name in per_batch[0]}
