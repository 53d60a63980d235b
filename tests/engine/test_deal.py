"""Runs are dealt out to processes evenly, and images stay whole where they can."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from buttress.attacks.core import create_attack
from buttress.attacks.problem import PassCounter
from buttress.engine import AttackResult
from buttress.engine.options import AttackOptions
from buttress.engine.processes import partition_runs
from buttress.engine.run import run_attack
from buttress.threats.norm_ball import Norm, NormBall
from conftest import images, small_net


@given(st.data(), st.integers(1, 9), st.integers(1, 7), st.integers(1, 5))
def test_each_run_is_dealt_once_evenly_and_few_images_are_cut(
    data: st.DataObject, n: int, runs: int, count: int
) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=n * runs, max_size=n * runs))
    asked = torch.tensor(flags).view(n, runs)
    shares = partition_runs(asked, count)
    assert torch.equal(
        sum((s.long() for s in shares), torch.zeros_like(asked.long())), asked.long()
    )
    loads = [int(s.sum()) for s in shares]
    assert len(shares) == min(count, int(asked.sum()))
    assert not loads or max(loads) - min(loads) <= 1
    owners = sum((s.any(1).long() for s in shares), torch.zeros(n, dtype=torch.int64))
    assert int((owners - 1).clamp_min(0).sum()) < count, "a cut for each border at most"


def test_images_that_follow_each_other_go_to_different_processes() -> None:
    first, second = partition_runs(torch.ones(6, 3, dtype=torch.bool), 2)
    assert first.any(1).tolist() == [True, False] * 3
    assert second.any(1).tolist() == [False, True] * 3


def test_an_image_over_is_cut_in_the_middle_of_its_runs() -> None:
    first, second = partition_runs(torch.ones(3, 4, dtype=torch.bool), 2)
    assert first.sum(1).tolist() == [4, 0, 2]
    assert second.sum(1).tolist() == [0, 4, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
@pytest.mark.parametrize("norm", ["Linf", "L1"])
@pytest.mark.parametrize("stop", [False, True])
def test_one_image_in_two_processes(norm: Norm, stop: bool) -> None:
    """The runs of an image that are apart find together what they find in one process."""
    model, x = small_net().double(), images(6)[0].double()
    y = model(x).argmax(1)
    chosen = create_attack("apgd-t", steps=10, targets=5)
    broken = []
    for row in range(6):
        mine = x[row : row + 1], y[row : row + 1]
        one, two = (
            run_attack(
                chosen, model, *mine, NormBall(norm, 0.03 if norm == "Linf" else 1.5),
                ids=torch.tensor([row]), options=AttackOptions(workers=n, stop_when_fooled=stop),
            )
            for n in (1, 2)
        )  # fmt: skip
        broken.append(bool(one.fooled))
        assert torch.equal(one.fooled, two.fooled)
        if not (stop and broken[-1]):
            torch.testing.assert_close(one.margin, two.margin, rtol=0, atol=1e-9)
            torch.testing.assert_close(one.x_adv, two.x_adv, rtol=0, atol=1e-9)
            assert torch.equal(one.counter.forward, two.counter.forward)
            assert torch.equal(one.counter.backward, two.counter.backward)
    assert 0 < sum(broken) < 6, "the case must have both kinds"


def outcome(broken: list[bool], margin: list[float], value: float) -> AttackResult:
    n, meter = len(broken), PassCounter.zeros(len(broken), torch.device("cpu"))
    meter.forward += 1
    return AttackResult(
        torch.full((n, 1, 1, 1), value), torch.tensor(broken), torch.tensor(margin), meter
    )


def test_the_better_of_two_points_counts() -> None:
    """A broken one first, then the larger margin, whichever comes first; both were paid for."""
    one = outcome([True, False, False, True, False], [0.1, -0.1, -0.1, 0.1, -0.1], 0.25)
    two = outcome([False, True, False, True], [0.2, 0.0, -0.2, 0.3], 0.75)
    one.keep_better(torch.tensor([0, 1, 2, 3]), two)
    assert one.fooled.tolist() == [True, True, False, True, False]
    assert one.x_adv.flatten().tolist() == [0.25, 0.75, 0.25, 0.75, 0.25]
    assert one.margin.tolist() == pytest.approx([0.1, 0.0, -0.1, 0.3, -0.1])
    assert one.counter.forward.tolist() == [2, 2, 2, 2, 1]
