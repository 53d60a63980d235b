"""AutoPGD: the rule for the step size, the momentum, the start, and the phases in L1."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.apgd import APGDCE, APGDT, APGDState, checkpoint_windows
from buttress.attacks.apgd_l1 import APGDL1State, build_phase_table
from buttress.attacks.core import create_attack
from buttress.attacks.problem import ModelOutput, Problem
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Norm, NormBall
from conftest import Linear, images, small_net

EPS = 0.01


def problem_of(norm: Norm, eps: float = EPS, n: int = 1) -> Problem:
    """Grey images far from the border of the box, under a model that is never asked."""
    x = torch.full((n, 3, 4, 4), 0.5, dtype=torch.float64)
    y, model = torch.zeros(n, dtype=torch.int64), Linear(48, 3).double()
    streams = SampleRNG(0, "test", torch.arange(n))
    return Problem(model, x, y, NormBall(norm, eps), streams, clean_logits=model(x).detach())


def seen_of(loss: float, grad: Tensor) -> ModelOutput:
    return ModelOutput(grad.new_zeros(1, 3), grad.new_tensor([loss]), grad)


def slope(seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, 4, 4, generator=source, dtype=torch.float64)


class Walk(NamedTuple):
    points: list[Tensor]  # where each look was
    went_on_from: list[Tensor]  # the same, or the best point where it was taken up
    eta: list[float]  # after each look, in units of eps


def walk(losses: Sequence[float]) -> Walk:
    """What APGD with 100 steps does when its looks show these losses."""
    attack, problem, done = APGDCE(steps=100), problem_of("Linf"), Walk([], [], [])
    state = attack.init_state(problem, torch.zeros(1, dtype=torch.int64))
    assert isinstance(state, APGDState)
    for look, loss in enumerate(losses):
        done.points.append(state.x_t.clone())
        state.x_t = attack.next_points(problem, state, seen_of(loss, slope(look)))
        state.step += 1
        done.went_on_from.append(state.x_prev.clone())
        done.eta.append(float(state.step_size) / EPS)
    return done


def losses_with(rises: int, first: float = 1.0) -> list[float]:
    """A start and the 22 steps of the first window, of which the first ``rises`` rise."""
    up = [first + step for step in range(1, rises + 1)]
    return [first, *up, *(up[-1] - step for step in range(1, 23 - rises))]


def test_windows_of_a_hundred_steps() -> None:
    table = checkpoint_windows(100)
    ends = table.nonzero()[:, 0].tolist()
    assert ends == [22, 41, 57, 70, 80, 87, 93, 99]
    assert table[ends].tolist() == [22, 19, 16, 13, 10, 7, 6, 6]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 37])
def test_windows_of_few_steps_do_not_overlap(steps: int) -> None:
    table = checkpoint_windows(steps)
    ends = [0, *table.nonzero()[:, 0].tolist()]
    assert table[ends[1:]].tolist() == [b - a for a, b in itertools.pairwise(ends)]
    assert len(table) == steps + 1


def test_a_window_in_which_three_quarters_rise_halves_the_step() -> None:
    done = walk(losses_with(rises=16))  # 75% of 22 is 16.5
    assert done.eta[:22] == pytest.approx([2.0] * 22)
    assert done.eta[22] == pytest.approx(1.0)
    assert torch.equal(done.went_on_from[22], done.points[16])  # the best point
    assert not torch.equal(done.went_on_from[22], done.points[22])


def test_a_window_in_which_more_rise_keeps_the_step() -> None:
    done = walk(losses_with(rises=17))
    assert done.eta == pytest.approx([2.0] * 23)
    assert torch.equal(done.went_on_from[22], done.points[22])


def test_the_first_step_is_compared_with_zero() -> None:
    """So it is in the reference, whose history begins with zeros."""
    falls_first = losses_with(rises=16)
    falls_first[0] = 100.0  # step 1 is below the start, but positive
    falls_first[17] = falls_first[16] + 1.0
    falls_first[18:] = [falls_first[17] - k for k in range(1, 6)]
    assert walk(falls_first).eta[22] == pytest.approx(2.0), "17 rises, one of them against 0"
    below = losses_with(rises=17, first=-100.0)  # step 1 is above the start, but negative
    assert walk(below).eta[22] == pytest.approx(1.0), "16 rises"


def test_stagnation_halves_the_step_but_not_at_the_first_checkpoint_nor_twice_in_a_row() -> None:
    """All steps rise, and none reaches the loss of the start."""
    done = walk([1000.0, *(float(step) for step in range(1, 88))])
    at = {step: done.eta[step] for step in (22, 41, 57, 70, 80, 87)}
    assert list(at.values()) == pytest.approx([2.0, 1.0, 1.0, 0.5, 0.5, 0.25])
    assert torch.equal(done.went_on_from[22], done.points[22])
    assert torch.equal(done.went_on_from[41], done.points[0])


def test_the_best_gradient_is_taken_up_with_the_best_point() -> None:
    done = walk([*losses_with(rises=16), 0.0])
    best, before = done.points[16], done.points[21]
    problem = problem_of("Linf")
    along = problem.project(best + EPS * slope(16).sign())
    new = problem.project(best + 0.75 * (along - best) + 0.25 * (best - before))
    torch.testing.assert_close(done.points[23], new)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_first_step_is_plain_and_later_ones_repeat_a_quarter_of_the_last_move(
    norm: Norm,
) -> None:
    attack, problem = APGDCE(), problem_of(norm)
    state = attack.init_state(problem, torch.zeros(1, dtype=torch.int64))
    points, eta = [state.x_t.clone()], 2 * EPS
    for look in range(3):
        state.x_t = attack.next_points(problem, state, seen_of(float(look), slope(look)))
        state.step += 1
        points.append(state.x_t.clone())
        here, last = points[-2], points[max(look - 1, 0)]
        share = 1.0 if look == 0 else 0.75
        along = problem.scale_into_ball_(here + eta * problem.ball.steepest_direction(slope(look)))
        expected = problem.scale_into_ball_(
            here + share * (along - here) + (1 - share) * (here - last)
        )
        torch.testing.assert_close(points[-1], expected)


def test_in_l2_points_are_drawn_straight_into_the_ball() -> None:
    """At the border of the box that is not the nearest point of ball and box."""
    problem = replace(problem_of("L2"), x=torch.zeros_like(problem_of("L2").x))
    state = APGDCE().init_state(problem, torch.zeros(1, dtype=torch.int64))
    here = state.x_t.clone()
    far = here + 2 * EPS * problem.ball.steepest_direction(slope(0))
    new = APGDCE().next_points(problem, state, seen_of(0.0, slope(0)))
    torch.testing.assert_close(new, problem.threat.scale_into_ball(problem.x, far))
    assert not torch.allclose(new, problem.project(far))


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_starts_are_stretched_to_the_border_of_the_ball(norm: Norm) -> None:
    problem = problem_of(norm, 0.1, n=5)
    runs = [torch.full((5,), run) for run in (0, 1)]
    starts = [APGDCE().init_state(problem, run).x_t for run in runs]
    for start in starts:
        length = problem.threat.perturbation_size(problem.x, start)
        torch.testing.assert_close(length, torch.full_like(length, 0.1), rtol=1e-9, atol=0)
    assert not torch.equal(*starts)


def test_phases_in_l1() -> None:
    phases = build_phase_table(100, True)
    assert len(phases.radius) == phases.num_steps + 1 == 103
    assert phases.radius.tolist() == [3.0] * 31 + [2.0] * 31 + [1.0] * 41
    assert phases.is_phase_start.nonzero()[:, 0].tolist() == [0, 31, 62]
    assert phases.is_phase_end.nonzero()[:, 0].tolist() == [30, 61]
    assert phases.is_back_at_eps.nonzero()[:, 0].tolist() == [62]
    one = build_phase_table(100, False)
    assert not one.is_back_at_eps.any()
    assert one.radius.tolist() == [1.0] * 101
    assert not one.is_phase_end.any()
    assert one.is_update.nonzero()[:, 0].tolist() == list(range(4, 101, 4))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 10])
def test_few_steps_in_l1_end_in_the_ball_itself(steps: int) -> None:
    for wide in (False, True):
        phases = build_phase_table(steps, wide)
        assert phases.radius[-1] == 1
        assert steps <= phases.num_steps <= steps + 2
        assert len(phases.radius) == phases.num_steps + 1


@pytest.mark.parametrize(
    ("norm", "use_larger_eps", "looks"),
    [("Linf", True, 11), ("L2", True, 11), ("L1", True, 13), ("L1", False, 11)],
)
def test_passes_of_ten_steps(norm: Norm, use_larger_eps: bool, looks: int) -> None:
    model, x = small_net().double(), images(3)[0].double()
    y, args = model(x).argmax(1), {"steps": 10, "use_larger_eps": use_larger_eps}
    out = run_attack(create_attack("apgd-ce", **args), model, x, y, NormBall(norm, 1e-3))
    assert out.counter.forward.tolist() == [1 + looks] * 3  # and the clean image
    assert out.counter.backward.tolist() == [looks - 1] * 3  # none at the last point


def test_points_of_the_larger_balls_do_not_count_in_l1() -> None:
    problem, attack = problem_of("L1", 2.0), APGDCE(steps=100)
    state = attack.init_state(problem, torch.zeros(1, dtype=torch.int64))
    assert isinstance(state, APGDL1State)
    torch.testing.assert_close(
        problem.threat.perturbation_size(problem.x, state.x_t), torch.tensor([6.0]).double()
    )
    for step, counts in ((0, False), (30, False), (61, False), (62, True), (102, True)):
        state.step = torch.tensor([step])
        inside = attack.valid_mask(problem, state, torch.tensor([True]))
        assert inside is not None
        assert bool(inside) == counts


class OnePixel(nn.Module):
    """Class 1 wins once the first pixel is brighter by more than ``need``."""

    def __init__(self, need: float) -> None:
        super().__init__()
        self.need = need

    def forward(self, x: Tensor) -> Tensor:
        more = x[:, 0, 0, 0] - 0.5 - self.need
        return torch.stack([torch.zeros_like(more), more], 1)


def passes_in_l1(need: float, early_stop: bool) -> tuple[int, int]:
    """Forward and backward passes of 100 steps in a ball of 0.05, beside the clean image's."""
    x, y = torch.full((1, 1, 8, 8), 0.5), torch.zeros(1, dtype=torch.int64)
    attack = create_attack("apgd-t", steps=100, early_stop=early_stop)
    out = run_attack(attack, OnePixel(need), x, y, NormBall("L1", 0.05))
    assert not out.fooled.any()
    return int(out.counter.forward) - 1, int(out.counter.backward)


@pytest.mark.parametrize("need", [0.12, 0.2])  # the first falls in the ball of 3 eps only
def test_a_run_is_given_up_that_fooled_nothing_in_the_larger_ball(need: float) -> None:
    assert passes_in_l1(need, early_stop=True) == (63, 62), "one look back in the ball itself"
    assert passes_in_l1(need, early_stop=False) == (103, 102)


def test_a_run_goes_on_that_fooled_the_model_in_the_larger_ball() -> None:
    assert passes_in_l1(0.08, early_stop=True) == (103, 102)


def test_giving_up_changes_no_verdict_here() -> None:
    model, (x, _) = small_net(), images(24)
    y, threat = model(x).argmax(1), NormBall("L1", 0.6)
    patient, hasty = (
        run_attack(create_attack("apgd-t", steps=25, early_stop=ends), model, x, y, threat)
        for ends in (False, True)
    )
    assert 0 < int(patient.fooled.sum()) < 24, "the case must have both kinds"
    assert torch.equal(patient.fooled, hasty.fooled)
    assert hasty.counter.backward.sum() < patient.counter.backward.sum()


@pytest.mark.parametrize("name", ["apgd-t", "fab-t"])
@pytest.mark.parametrize(("classes", "runs"), [(2, 1), (3, 2), (4, 3), (20, 9)])
def test_there_are_never_more_targets_than_other_classes(
    name: str, classes: int, runs: int
) -> None:
    assert create_attack(name).num_runs(classes) == runs
    assert create_attack(name, restarts=2).num_runs(classes) == 2 * runs


def test_restarts_of_a_targeted_attack_stay_with_their_class() -> None:
    problem = problem_of("Linf")
    chosen = [
        int(APGDT(restarts=2).target_classes(problem, torch.tensor([run]))) for run in range(4)
    ]
    assert chosen[0] == chosen[1] != chosen[2] == chosen[3]
    assert 0 not in chosen


@pytest.mark.parametrize(("classes", "skip", "expected"), [(10, 3, [3, 4, 5]), (3, 1, [1])])
def test_the_first_classes_can_be_passed_over(classes: int, skip: int, expected: list[int]) -> None:
    x, y = torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    clean = -torch.arange(float(classes)).expand(2, classes)
    streams = SampleRNG(0, "apgd-t", torch.arange(2))
    problem = Problem(small_net(classes), x, y, NormBall("Linf", 0.1), streams, clean_logits=clean)
    attack = create_attack("apgd-t", targets=3, skip_targets=skip)
    assert attack.target_ranks(classes).tolist() == expected  # type: ignore[union-attr]
    for run, rank in enumerate(expected):
        state = attack.init_state(problem, torch.tensor([run, run]))
        assert isinstance(state, APGDState)
        assert state.target.tolist() == [rank + 1, rank + 1]
    with pytest.raises(UserError, match="`skip_targets >= 0` must hold"):
        create_attack("apgd-t", skip_targets=-1)
