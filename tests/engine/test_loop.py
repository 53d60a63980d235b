"""The shared loop: what counts as a success, whose turn it is, and what dropping saves."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.attacks.losses import is_misclassified, margin
from buttress.attacks.problem import PassCounter, Problem
from buttress.engine.batching import AttackRunQueue
from buttress.engine.fast_model import FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Norm, NormBall
from conftest import images, small_net


class Cracked(nn.Module):
    """Logits that are not finite wherever the image is not grey: they count as fooled."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        total = (x - 0.5).abs().flatten(1).sum(1, keepdim=True)
        bad = torch.tensor([2.0, self.value, 0.0])
        return bad.where(total > 1e-6, torch.tensor([2.0, 1.0, 0.0])) + 0 * total


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["pgd", "noise", "square"])
def test_logits_that_are_not_finite_count_as_fooled(name: str, value: float) -> None:
    x, y = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)
    args = {"pgd": {"steps": 2}, "square": {"queries": 3}}.get(name, {})
    out = run_attack(create_attack(name, **args), Cracked(value), x, y, NormBall("Linf", 0.1))
    assert out.fooled.all()
    assert not Cracked(value)(out.x_adv).isfinite().all(1).any()
    assert out.counter.non_finite.all(), "and it is reported"


def test_a_success_is_another_class_or_logits_that_are_not_finite() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[2.0, 1], [1, 2], [nan, 2], [1, nan], [1, inf], [-inf, 1]])
    assert (
        is_misclassified(logits, torch.zeros(6, dtype=torch.int64)).tolist() == [False] + [True] * 5
    )


def taken(
    queue: AttackRunQueue, room: int, busy: list[int], out: Tensor | None = None
) -> list[tuple[int, int]]:
    samples, numbers = queue.take(room, out, torch.tensor(busy, dtype=torch.int64))
    return list(zip(samples.tolist(), numbers.tolist(), strict=True))


def test_the_queue_gives_every_run_of_every_sample_once() -> None:
    queue, given = AttackRunQueue(torch.tensor([3, 5, 8]), 2), []
    while len(queue):
        given += taken(queue, 2, [])
    assert given == [(s, run) for run in (0, 1) for s in (3, 5, 8)]


def test_the_queue_passes_over_broken_samples_and_waits_for_busy_ones() -> None:
    queue = AttackRunQueue(torch.tensor([3, 5, 8]), 2, saturating_batch=0)
    assert taken(queue, 9, []) == [(3, 0), (5, 0), (8, 0)], "one run at a time"
    assert taken(queue, 2, [3, 5, 8]) == []
    out = torch.zeros(9, dtype=torch.bool)
    out[5] = True
    assert taken(queue, 9, [8], out) == [(3, 1)]
    assert taken(queue, 9, [], out) == [(8, 1)]
    assert len(queue) == 0


def test_a_batch_with_room_takes_several_runs_of_a_sample() -> None:
    queue = AttackRunQueue(torch.tensor([3, 5, 8]), 3, saturating_batch=5)
    assert taken(queue, 9, []) == [(3, 0), (5, 0), (8, 0), (3, 1), (5, 1)], "up to five rows"
    assert taken(queue, 4, [3, 5, 8, 3, 5]) == []
    assert taken(queue, 4, [3, 5, 3, 5]) == [(8, 1)]
    assert len(queue) == 3


def test_nobody_waits_for_a_run_that_is_not_asked_for() -> None:
    asked = torch.tensor([[True, False], [True, True], [True, True]])
    queue = AttackRunQueue(torch.tensor([0, 1, 2]), 2, saturating_batch=0, run_mask=asked)
    assert taken(queue, 9, []) == [(0, 0), (1, 0), (2, 0)]
    assert taken(queue, 9, [0]) == [(1, 1), (2, 1)], "the first is busy, but has no second run"
    assert len(queue) == 0


@pytest.mark.parametrize("full", [0, 128])
@pytest.mark.parametrize("name", ["pgd", "apgd-t", "fab-t", "square"])
def test_rows_that_come_and_go_change_nothing(name: str, full: int) -> None:
    """Samples that break leave, others take their place in the middle of the runs of the rest.

    Where several runs of a sample go on at once, another of them may be the first to break it.
    """
    model, x = small_net().double(), images(16)[0].double()
    y = model(x).argmax(1)
    args = {"queries": 60} if name == "square" else {"steps": 6, "restarts": 2}
    chosen, threat = create_attack(name, **args), NormBall("Linf", 0.05)
    whole, parts = (
        run_attack(
            chosen,
            model,
            x,
            y,
            threat,
            options=AttackOptions(
                batch_size=size,
                stop_when_fooled=True,
                fast_model=FastModel(model, saturating_batch=full),
            ),
        )
        for size in (256, 3)
    )
    assert 0 < int(whole.fooled.sum()) < 16, "the case must have both kinds"
    assert torch.equal(parts.fooled, whole.fooled)
    same = torch.ones(16, dtype=torch.bool) if full == 0 else ~whole.fooled
    torch.testing.assert_close(parts.x_adv[same], whole.x_adv[same], rtol=0, atol=1e-9)
    assert torch.equal(parts.counter.forward[same], whole.counter.forward[same])
    assert torch.equal(parts.counter.backward[same], whole.counter.backward[same])
    with torch.no_grad():
        assert torch.equal(model(whole.x_adv).argmax(1) != y, whole.fooled)


def test_progress_rises_to_the_end() -> None:
    model, (x, y) = small_net(), images(6)
    told: list[float] = []
    chosen = create_attack("autoattack", steps=2, queries=3)
    how = AttackOptions(batch_size=2, on_progress=told.append)
    run_attack(chosen, model, x, y, NormBall("Linf", 0.01), options=how)
    assert told == sorted(told)
    assert told[0] >= 0
    assert told[-1] == pytest.approx(1.0)


def test_gradients_of_some_rows_are_those_of_all_rows() -> None:
    model, (x, y) = small_net().double().requires_grad_(False), images(5)
    x, rows = x.double(), torch.arange(5)
    wanted = torch.tensor([True, False, True, True, False])
    meter = PassCounter.zeros(5, x.device)
    problem = Problem(
        model, x, y, NormBall("Linf", 0.1), SampleRNG(0, "t", rows), counter=meter, sample_rows=rows
    )
    whole = problem.evaluate_at(x, lambda z: margin(z, y))
    part = problem.evaluate_at(x, lambda z: margin(z, y), grad=wanted)
    torch.testing.assert_close(part.logits, whole.logits)
    torch.testing.assert_close(part.loss, whole.loss)
    assert whole.grad is not None
    assert part.grad is not None
    torch.testing.assert_close(part.grad[wanted], whole.grad[wanted])
    assert not part.grad[~wanted].any()
    assert meter.forward.tolist() == [2] * 5
    assert meter.backward.tolist() == [2, 1, 2, 2, 1]


def test_the_meter_counts_rows_and_neighbours_alike() -> None:
    """Also where a sample is in two rows, in one of which its loss was not finite."""
    size = torch.tensor([torch.inf, 0.0, 2.0])
    sliced, listed = (PassCounter.zeros(4, size.device) for _ in range(2))
    for place, meter in ((slice(0, 3), sliced), (torch.tensor([0, 1, 2]), listed)):
        meter.count_forward(place, ~size.isfinite())
        meter.count_backward(place, size, 2)
    for meter in (sliced, listed):
        assert meter.forward.tolist() == [1, 1, 1, 0]
        assert meter.backward.tolist() == [2, 2, 2, 0]
        assert meter.non_finite.tolist() == [True, False, False, False]
        assert meter.zero_gradient.tolist() == [False, True, False, True]
    listed.count_forward(torch.tensor([3, 3, 1]), torch.tensor([True, False, False]))
    assert listed.forward.tolist() == [1, 2, 1, 2]
    assert listed.non_finite.tolist() == [True, False, False, True]


def test_rows_are_a_slice_only_if_they_are_neighbours_in_order() -> None:
    x, y = images(6)
    whole = Problem(small_net(), x, y, NormBall("Linf", 0.1), SampleRNG(0, "test", y))
    assert whole.counter_index == slice(0, 6)
    assert whole.select(torch.tensor([2, 3, 4])).counter_index == slice(2, 5)
    for rows in ([1, 3, 2, 4], [2, 2, 4], [5, 4, 3], []):
        chosen = torch.tensor(rows, dtype=torch.int64)
        found = whole.select(chosen).counter_index
        assert isinstance(found, Tensor)
        assert torch.equal(found, chosen)


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_a_step_without_end_leaves_pixels_without_a_gradient_alone(norm: Norm) -> None:
    class Half(nn.Module):
        """Looks at the left half of an image only."""

        def forward(self, x: Tensor) -> Tensor:
            left = x[..., : x.shape[-1] // 2].flatten(1)
            return torch.stack([left.mean(1) - 0.5, 0.5 - left.mean(1)], 1)

    x, _ = images(4)
    model = Half()
    y, threat = model(x).argmax(1), NormBall(norm, 0.1)
    for length in (1e10, 1e300):
        attack = create_attack("pgd", steps=3, rel_step=length, start="clean")
        out = run_attack(attack, model, x, y, threat)
        assert (out.margin > margin(model(x), y)).all()
        right = slice(x.shape[-1] // 2, None)
        assert torch.equal(out.x_adv[..., right], x[..., right])


def test_six_calls_lead_from_run_attack_to_the_forward_pass() -> None:
    model, (x, y) = small_net(), images(2)
    walks: list[list[str]] = []

    def record_stack(*_: object) -> None:
        frames = traceback.extract_stack()
        walks.append([f.name for f in frames if "/buttress/" in f.filename])

    handle = model.register_forward_pre_hook(record_stack)
    options = AttackOptions(fast_model=FastModel(model))
    run_attack(create_attack("pgd", steps=1), model, x, y, NormBall("Linf", 0.01), options=options)
    handle.remove()
    expected = ["run_attack", "run_ensemble", "search_and_confirm", "run_queue", "evaluate"]
    assert max(walks, key=len) == [*expected, "evaluate_at"], "as docs/architecture.md says"
