"""What goes wrong in training is noticed, said and, if asked, undone."""

from __future__ import annotations

from typing import Any

import pytest

from buttress.progress import Silent
from buttress.training.guard import has_collapsed, has_diverged, warnings_of


def rows(*pairs: tuple[float, float | None]) -> list[dict[str, Any]]:
    """Epochs with their accuracy under the training attack and under the validation attack."""
    return [{"train_accuracy": a, "val_robust": b, "val_clean": b, "loss": 1.0} for a, b in pairs]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (rows((0.3, 0.3), (0.4, 0.35), (0.8, 0.02)), True),
        (rows((0.3, 0.3), (0.4, 0.35), (0.2, 0.02)), False),  # everything fell: no deception
        (rows((0.3, 0.3), (0.4, 0.35), (0.8, 0.30)), False),  # robust overfitting, not a collapse
        (rows((0.3, 0.06), (0.8, 0.01)), False),  # chance explains it
        (rows((0.3, 0.4), (0.8, None)), False),  # nobody looked
        (rows((0.8, 0.01)), False),
    ],
)
def test_a_collapse_is_told_from_other_falls(history: list[dict[str, Any]], expected: bool) -> None:
    assert has_collapsed(history) is expected


def test_a_diverging_loss_is_far_above_that_of_the_first_epoch() -> None:
    assert has_diverged(rows((0.3, 0.3)), 4.1)
    assert not has_diverged(rows((0.3, 0.3)), 3.9)
    assert not has_diverged([], 100.0)


def test_a_model_that_guesses_is_said_to_have_failed() -> None:
    assert "training failed" in warnings_of(rows((0.1, 0.1), (0.1, 0.14)), 10)[0]
    assert warnings_of(rows((0.1, 0.1), (0.1, 0.16)), 10) == []


RECIPE = """
epochs: {epochs}
batch_size: 32
objective: {{name: fast, args: {{rel_step: 2.0}}}}
threat: Linf:{eps}
optimiser: {{name: sgd, lr: 0.2}}
schedule: {{name: constant}}
validation: {{attack: {{name: pgd, args: {{steps: 20}}}}, limit: 100}}
on_collapse: {what}
"""


class Logged(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)
