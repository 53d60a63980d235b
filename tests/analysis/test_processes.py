"""Analyses use all cores, and the number of processes changes no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from buttress.analysis import ANALYSES, AnalysisSubject, transferability
from buttress.attacks.core import create_attack
from buttress.data import load_dataset
from buttress.engine import processes
from buttress.engine.processes import map_in_processes
from buttress.errors import UserError
from buttress.models import create_model
from buttress.threats.norm_ball import NormBall

CASES: dict[str, dict[str, Any]] = {
    "landscape": {"points": 3, "limit": 6, "steps": 2},
    "input_landscape": {"points": 3, "limit": 3},
    "convergence": {"short_steps": (1, 2), "reference_steps": 4, "seeds": 2, "limit": 4},
}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def process_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes each parallel part used."""
    counts: list[int] = []
    run: Callable[..., Any] = processes.run_in_processes

    def record(tasks: Any, on_progress: Any = None) -> Any:
        counts.append(len(tasks))
        return run(tasks, on_progress)

    monkeypatch.setattr(processes, "run_in_processes", record)
    return counts


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_processes_changes_no_number(name: str, process_counts: list[int]) -> None:
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        data = load_dataset("digits", "test", limit=6)
        model = create_model("resnet_tiny", seed=0).eval()
        subject = AnalysisSubject(model, data, NormBall("Linf", 0.1))
        results.append(ANALYSES.get(name)(subject, **CASES[name]).model_dump())
    assert results[0] == results[1] == results[2]
    assert max(process_counts) > 1


def test_transferred_examples_are_made_in_processes(
    process_counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transferability, "IMAGES_PER_ITEM", 4)
    data, model = load_dataset("digits", "test", limit=12), create_model("resnet_tiny", seed=0)
    attack, examples = create_attack("pgd", steps=3), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        examples.append(
            transferability.adversarial_examples(attack, model, data, NormBall("Linf", 0.1))
        )
    assert torch.equal(examples[0], examples[1])
    assert torch.equal(examples[0], examples[2])
    assert process_counts == [2, 3]


def test_items_are_computed_in_order(process_counts: list[int]) -> None:
    torch.set_num_threads(3)
    done: list[float] = []
    assert map_in_processes(lambda k: k * k, range(8), CPU, done.append) == [
        k * k for k in range(8)
    ]
    assert process_counts == [3]
    assert done == sorted(done)
    assert map_in_processes(lambda k: k, range(2), torch.device("meta")) == [0, 1]
    assert process_counts == [3]


def test_an_error_of_an_item_is_raised() -> None:
    def fail(k: int) -> int:
        raise UserError(f"no {k}")

    torch.set_num_threads(2)
    with pytest.raises(UserError, match="no 0"):
        map_in_processes(fail, range(2), CPU)
