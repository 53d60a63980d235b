"""Empirical Lipschitz constants: how far outputs move per distance, where attacks go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from buttress.analysis.spectral import hooked
from buttress.analysis.subject import Subject
from buttress.attacks.call import attack_name
from buttress.attacks.core import Attack, State, column
from buttress.attacks.freeze import frozen, on_device_of
from buttress.attacks.loop import run
from buttress.attacks.pgd import Ascent
from buttress.attacks.problem import Problem, Score, Seen
from buttress.data import Batch
from buttress.errors import UserError
from buttress.progress import Task, by_share
from buttress.streams import Streams
from buttress.threat import TOLERANCE, Norm, Threat

LOGITS = "logits"
BATCH = 64  # images whose outputs in every block are held at once
# Pairs of norms, of the output and of the input: the published one, and that of spectral norms.
PAIRS: tuple[tuple[Norm, Norm], ...] = (("L1", "Linf"), ("L2", "L2"))
OUTPUT_OF: dict[Norm, Norm] = {of_input: of_output for of_output, of_input in PAIRS}


@dataclass(frozen=True)
class Places:
    """Where in a network outputs are read: some of its modules, and the logits."""

    model: nn.Module
    modules: dict[str, nn.Module]

    def outputs(self, x: Tensor) -> dict[str, Tensor]:
        """(N, ...) what each place gives; a module that gives no tensor is left out."""
        found: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                first = output[0] if isinstance(output, (tuple, list)) and output else output
                if isinstance(first, Tensor) and len(first) == len(x):
                    found[name] = first.detach().clone()  # later layers may write into it

            return hook

        with torch.no_grad(), hooked({m: keep(n) for n, m in self.modules.items()}):
            found[LOGITS] = self.model(x)
        return {name: found[name] for name in (*self.modules, LOGITS) if name in found}


@dataclass
class Watch:
    """The largest ratio of each image of a batch so far, at each place and in each pair."""

    places: Places
    x: Tensor
    threat: Threat
    clean: dict[str, Tensor] = field(init=False)
    best: dict[str, Tensor] = field(init=False)  # (pairs, N)

    def __post_init__(self) -> None:
        self.clean = self.places.outputs(self.x)
        self.best = {name: self.x.new_zeros(len(PAIRS), len(self.x)) for name in self.clean}

    def ratios(self, x_t: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """(pairs, n) ratios at points; zero for a point that did not move or left the ball."""
        delta = x_t - self.x[rows]
        allowed = self.threat.length(delta) <= self.threat.eps * (1 + TOLERANCE) + 1e-7
        found = {}
        for name, output in self.places.outputs(x_t).items():
            change = output - self.clean[name][rows]
            pairs = [_length(change, out) / _length(delta, into) for out, into in PAIRS]
            good = [r.where(allowed & r.isfinite(), 0.0) for r in pairs]
            found[name] = torch.stack(good).to(self.x)
        return found

    def see(self, x_t: Tensor, rows: Tensor) -> None:
        """Keeps what is larger; a sample may be in several rows."""
        for name, ratios in self.ratios(x_t, rows).items():
            index = rows.expand_as(ratios)
            self.best[name].scatter_reduce_(1, index, ratios, "amax")


def _length(delta: Tensor, norm: Norm) -> Tensor:
    return Threat(norm, 0.0).length(delta)


@dataclass(frozen=True)
class Watched(Problem):
    """A problem that shows a watch every point an attack looks at."""

    watch: Watch | None = field(default=None, repr=False)

    def look(
        self, x_t: Tensor, score: Score, *, grad: bool | Tensor = True, passes: int = 1
    ) -> Seen:
        seen = super().look(x_t, score, grad=grad, passes=passes)
        if self.watch is not None:
            self.watch.see(x_t, self.rows_of() if self.rows is None else self.rows)
        return seen


@dataclass
class RadiusState(State):
    """The current points, and the share of eps that each may move by."""

    radius: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass(frozen=True)
class RatioAscent(Ascent):
    r"""Raises the ratio itself: :math:`\max_{|x' - x| \le r} |f(x') - f(x)| / r` for several r.

    The output is measured in L1 where the ball is Linf and in L2 where it is L2. Inside a ball of
    radius r = ``radii`` * eps the best point for the numerator is at its border, so each radius
    is one run of gradient ascent on it; small radii come near the norm of the gradient at x.
    """

    radii: tuple[float, ...] = (1.0, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.radii or not all(0 < r <= 1 for r in self.radii):
            raise UserError(f"each radius must be in (0, 1], as a share of eps; got {self.radii}")

    def runs(self, problem: Problem) -> int:
        return len(self.radii)

    def begin(self, problem: Problem, run: Tensor) -> State:
        radius = torch.tensor(self.radii).to(problem.x)[run]
        noise = problem.random_start(run) - problem.x
        return RadiusState(problem.x + column(radius) * noise, radius=radius)

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        assert problem.clean is not None
        return _length(logits - problem.clean, OUTPUT_OF[problem.threat.norm])

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        assert isinstance(state, RadiusState)
        step = self.rel_step * problem.threat.eps * state.radius
        moved = state.x_t + column(step) * problem.threat.steepest(seen.grad)
        return problem.project(moved, state.radius)


@dataclass(frozen=True)
class Found:
    """(pairs, N) ratios of all images at one place."""

    result: Tensor  # at the point that the attack returned
    attack: Tensor  # the largest along the attack
    ascent: Tensor  # the largest along the ascents


@dataclass(frozen=True)
class Search:
    """The attack of the published figure, and the ascents beside it."""

    attack: Attack
    ascent: RatioAscent
    balls: tuple[Threat, ...]  # of the ascents

    def on(self, subject: Subject, places: Places, batch: Batch, task: Task) -> dict[str, Found]:
        """All ratios of one batch of images."""
        x = on_device_of(subject.model, batch.x)
        y = batch.y.to(x.device)
        share = len(x) / (1 + len(self.balls))

        def visit(attack: Attack, threat: Threat, name: str) -> tuple[Watch, Tensor]:
            watch = Watch(places, x, threat)
            streams = Streams(subject.seed, name, batch.ids)
            problem = Watched(subject.model, x, y, threat, streams, watch=watch)
            out = run(attack, problem, batch_size=len(x), on_step=by_share(task, share))
            return watch, out.x_adv

        with frozen(subject.model):
            seen, x_adv = visit(self.attack, subject.threat, attack_name(self.attack))
            at_end = seen.ratios(x_adv, torch.arange(len(x), device=x.device))
            seen.see(x_adv, torch.arange(len(x), device=x.device))
            climbs = [visit(self.ascent, ball, f"ratio {ball.norm}")[0] for ball in self.balls]
        return {
            name: Found(
                at_end[name].cpu(),
                seen.best[name].cpu(),
                torch.stack([c.best[name] for c in climbs]).amax(0).cpu(),
            )
            for name in seen.best
        }


def search_of(subject: Subject, attack: Attack, steps: int, radii: tuple[float, ...]) -> Search:
    """The attack, and an ascent in the input norm of each pair: its own ball, or the usual one."""
    trained, usual = subject.threat, subject.data.budgets
    balls = [trained if trained.norm == n else Threat(n, usual[n]) for _, n in PAIRS]
    return Search(attack, RatioAscent(steps=steps, radii=tuple(radii)), tuple(balls))


def measure(subject: Subject, search: Search, places: Places, images: int) -> dict[str, Found]:
    """The ratios of the first images at each place."""
    data = subject.first(images)
    task = subject.progress.task("empirical Lipschitz constants", len(data))
    found = [search.on(subject, places, batch, task) for batch in data.batches(BATCH)]
    task.close()

    def joined(name: str) -> Iterator[Tensor]:
        for part in ("result", "attack", "ascent"):
            yield torch.cat([getattr(f[name], part) for f in found], dim=1)

    return {name: Found(*joined(name)) for name in found[0]}
