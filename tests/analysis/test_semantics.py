"""What perturbations show: their scale, the ranks of judges, who may judge, and a planted case."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from buttress.analysis.semantics import (
    SemanticsResult,
    label_ranks,
    perturbations_as_images,
    semantics,
    top_accuracy,
)
from buttress.analysis.subject import AnalysisSubject, RunGroup
from buttress.data import Batch, Dataset
from buttress.errors import UserError
from buttress.system.progress import SilentProgress
from buttress.threats.norm_ball import NormBall


def test_no_change_is_grey_and_the_sign_is_that_of_the_image() -> None:
    x = torch.tensor([0.5, 0.5, 0.5])
    shown = perturbations_as_images(x, x + torch.tensor([0.0, 0.1, -0.1]), 0.1)
    assert shown.tolist() == pytest.approx([0.5, 0.0, 1.0], abs=1e-6)


class Fixed(nn.Module):
    """The same logits for every image: class 0 first, then 1, and so on."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(10.0, 0.0, -1.0).expand(len(x), 10)


def test_ranks_of_known_logits() -> None:
    batch = Batch(torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 4, 5]), torch.arange(4))
    result = top_accuracy(label_ranks(Fixed(), batch))
    assert (result.top1, result.top5) == (0.25, 0.75)


class Linear(nn.Module):
    """Class k is pixel k: the attack darkens the pixel of its class, and brightens the others."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(sign))

    def forward(self, x: Tensor) -> Tensor:
        return self.sign * x.flatten(1)


class Planted:
    """Three runs as a group: a maker and two judges, without files."""

    progress = SilentProgress()

    def __init__(self) -> None:
        x = torch.full((8, 1, 2, 2), 0.5)
        x.view(8, 4)[torch.arange(8), torch.arange(8) % 4] = 0.6
        self.data = Dataset.from_arrays(x, torch.arange(8) % 4, classes=list("abcd"))
        self.runs = [
            self.run("robust_maker", "pgd_at"), self.run("sees_it"), self.run("sees_the_opposite")
        ]  # fmt: skip
        self.members = self.runs
        self.models = [Linear(), Linear(), Linear(-1.0)]
        self.labels = ["maker", "sees", "opposite"]

    def run(self, model: str, objective: str = "standard") -> Any:
        # A standard recipe may name a threat too: the one of its validation.
        recipe = SimpleNamespace(objective=SimpleNamespace(name=objective), threat="Linf:0.1")
        spec = SimpleNamespace(model=f"own.py:{model}", recipe=recipe)
        return SimpleNamespace(path=Path(f"{model}-key"), spec=spec)

    def __len__(self) -> int:
        return len(self.runs)

    def subject(self, index: int) -> AnalysisSubject:
        return AnalysisSubject(self.models[index], self.data, NormBall("Linf", 0.1))


def judged(**args: Any) -> SemanticsResult:
    return semantics(cast(RunGroup, Planted()), steps=4, **args)


def test_a_judge_that_sees_the_class_is_always_right_and_its_opposite_never() -> None:
    result = judged(judges=["sees_it", "sees_the_opposite"])
    assert list(result.by_run) == ["robust_maker-key"]
    scores = result.by_run["robust_maker-key"].judges
    assert {name: s.top1 for name, s in scores.items()} == {"sees_it": 1, "sees_the_opposite": 0}
    assert result.by_run["robust_maker-key"].is_adversarially_trained
    figure = Figure(figsize=(6, 4))
    SemanticsResult.plot({"a": result}, figure)
    assert len(figure.axes[0].patches) == 2
    said = "50.0% for those of robust models (top-5: 100.0%) (8 images"
    assert said in result.summary()


def test_no_run_judges_itself() -> None:
    result = judged()
    assert list(result.by_run["sees_it-key"].judges) == ["sees_the_opposite"]
    assert [row.is_adversarially_trained for row in result.by_run.values()] == [True, False, False]
    assert sorted(result.by_run["robust_maker-key"].judges) == ["sees_it", "sees_the_opposite"]


def test_a_judge_must_be_a_run_without_an_adversary() -> None:
    with pytest.raises(UserError, match="robust_maker"):
        judged(judges=["robust_maker"])
