"""An attack in several processes: the same verdicts, errors that arrive, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.engine import AttackResult, ensemble
from buttress.engine.options import AttackOptions
from buttress.engine.processes import ProcessTask, default_num_workers, run_in_processes
from buttress.engine.run import run_attack
from buttress.errors import RunError, UserError
from buttress.system.progress import OnProgress
from buttress.threats.norm_ball import NormBall
from conftest import images, small_net

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


@pytest.mark.parametrize("name", ["pgd", "autoattack", "fast"])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_verdicts_and_passes_of_one_process(name: str, workers: int) -> None:
    model, x = small_net().double(), images(20)[0].double()
    y = model(x).argmax(1)
    args = {"pgd": {"steps": 5}, "autoattack": {"steps": 3, "queries": 20}}.get(name, {"steps": 4})
    chosen, threat = create_attack(name, **args), NormBall("Linf", 0.03)
    one, more = (
        run_attack(
            chosen, model, x, y, threat, options=AttackOptions(stop_when_fooled=True, workers=n)
        )
        for n in (1, workers)
    )
    assert 0 < int(one.fooled.sum()) < 20, "the case must have both kinds"
    assert torch.equal(one.fooled, more.fooled)
    same = ~one.fooled
    torch.testing.assert_close(one.x_adv[same], more.x_adv[same], rtol=0, atol=1e-9)
    assert torch.equal(one.counter.forward[same], more.counter.forward[same])
    assert torch.equal(one.counter.stages_run, more.counter.stages_run)
    assert one.stage_names == more.stage_names


def test_progress_comes_from_all_processes() -> None:
    model, (x, y) = small_net(), images(8)
    told: list[float] = []
    how = AttackOptions(on_progress=told.append, workers=2)
    run_attack(create_attack("pgd", steps=30), model, x, y, NormBall("Linf", 0.01), options=how)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


class Refuses(nn.Module):
    """Works in the process that asks, and in no other."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.inner, self.error = small_net(), error

    def forward(self, x: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None:
            raise self.error
        return self.inner(x)


def test_an_error_in_a_process_arrives() -> None:
    x, y = images(8)
    for error, expected in ((UserError("mine"), UserError), (ValueError("bad"), RunError)):
        with pytest.raises(expected, match=r"mine|ValueError: bad"):
            run_attack(
                create_attack("pgd", steps=2), Refuses(error), x, y, NormBall("Linf", 0.1),
                options=AttackOptions(workers=2),
            )  # fmt: skip
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_said_and_the_others_end() -> None:
    def dies(on_progress: OnProgress) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def sleeps(on_progress: OnProgress) -> int:
        time.sleep(60)
        return 1

    started = time.monotonic()
    with pytest.raises(RunError, match="ended with code -9"):
        run_in_processes([dies, sleeps])
    assert time.monotonic() - started < 30
    assert not multiprocessing.active_children()


def test_processes_only_where_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert default_num_workers(1000, cpu) == 4
    assert default_num_workers(9, cpu) == 2, "few images are not worth four"
    assert default_num_workers(3, cpu) == 1
    assert default_num_workers(1000, torch.device("meta")) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert default_num_workers(1000, cpu) == 1


def test_what_is_left_is_dealt_out_anew_before_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one process would have all that survive if they happen to be its own."""
    x, _ = images(12)
    model, dealt = small_net(), list[list[int]]()
    y = model(x).argmax(1)
    y[::2] = (y[::2] + 1) % 10  # every second image is wrong from the start

    def here(
        tasks: Sequence[ProcessTask[AttackResult]], on_progress: OnProgress | None = None
    ) -> list[AttackResult]:
        found = [task(lambda share: None) for task in tasks]
        dealt.append([len(out.fooled) for out in found])
        return found

    monkeypatch.setattr(ensemble, "run_in_processes", here)
    chosen = create_attack("autoattack", steps=2, queries=5)
    run_attack(chosen, model, x, y, NormBall("Linf", 1e-4), options=AttackOptions(workers=2))
    assert dealt == [[3, 3]] * 4
