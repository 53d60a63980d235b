"""Stability against evaluations of the same attack, and against models that can be seen through."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from buttress.analysis import ANALYSES, AnalysisSubject
from buttress.analysis.stability import StabilityResult, stability
from buttress.data import Dataset, load_dataset
from buttress.errors import UserError
from buttress.evaluation import evaluate
from buttress.models import create_model
from buttress.threats.norm_ball import NormBall


class Steps(nn.Module):
    """Three classes by the brightness of the image: below 0.3, up to 0.6, above."""

    def forward(self, x: Tensor) -> Tensor:
        light = x.mean((1, 2, 3))
        return torch.stack([0.3 - light, 0.15 - (light - 0.45).abs(), light - 0.6], 1)


def grey(levels: list[float], labels: list[int]) -> Dataset:
    x = torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    return Dataset.from_arrays(x, torch.tensor(labels), classes=("dark", "grey", "light"))


def test_the_four_kinds_of_images_of_a_model_seen_through() -> None:
    #        right stable, right moved, wrong stable, wrong moved
    data = grey([0.05, 0.28, 0.9, 0.32], [0, 0, 0, 0])
    result = stability(AnalysisSubject(Steps().eval(), data, NormBall("Linf", 0.1)), per_class=True)
    assert result.correct_and_stable.count == 1
    assert result.correct_and_unstable.count == 1
    assert result.wrong_and_stable.count == 1
    assert result.wrong_and_unstable.count == 1
    assert result.stable_if_correct.fraction == 0.5
    assert [c.images for c in result.per_class] == [4, 0, 0]
    assert (result.per_class[0].correct, result.per_class[0].stable) == (2, 2)


def test_the_published_way_overlooks_wrong_images_that_could_be_moved() -> None:
    # Its label is dark; the attack on the label flees from dark, and so never crosses into it.
    subject = AnalysisSubject(Steps().eval(), grey([0.32], [0]), NormBall("Linf", 0.1))
    assert stability(subject, against="label").wrong_and_stable.count == 1
    assert stability(subject).wrong_and_unstable.count == 1
    both = stability(subject, against="both")
    assert both.wrong_and_unstable.count == 1
    assert both.stable_against_label is not None
    assert both.stable_against_label.count == 1


@pytest.mark.parametrize("name", ["resnet_tiny", "vit_tiny"])
def test_right_and_stable_is_the_robust_accuracy_of_an_evaluation(name: str) -> None:
    model = create_model(name, seed=0).eval()
    data = load_dataset("digits", "test", limit=48)
    with torch.no_grad():  # half of the labels are what the model says: some right, some wrong
        said = model(data.images).argmax(1)
    labels = torch.where(torch.arange(48) % 2 == 0, said, data.labels)
    data = replace(data, labels=labels)
    for eps in (0.08, 0.06, 0.04, 0.03, 0.02, 0.01, 0.005):  # versions of torch draw other weights
        result = stability(AnalysisSubject(model, data, NormBall("Linf", eps), seed=3))
        if result.correct_and_stable.count > 0:
            break
    judged = evaluate(model, data, ["clean", f"pgd:Linf:{eps}"], seed=3)
    assert 0 < result.correct_and_stable.count < result.correct.count < 48
    assert result.correct.fraction == judged.accuracy["clean"]
    assert result.correct_and_stable.fraction == judged.accuracy[f"pgd:Linf:{eps}"]
    assert result.correct_and_stable.fraction == judged.worst_case


def test_counts_add_up_and_the_sentence_has_the_numbers() -> None:
    model = create_model("resnet_tiny", seed=0)
    model.train()
    subject = AnalysisSubject(
        model, load_dataset("digits", "test", limit=20), NormBall("Linf", 0.05)
    )
    result = stability(subject, limit=10)
    kinds = ("correct_and_stable", "correct_and_unstable", "wrong_and_stable", "wrong_and_unstable")
    assert sum(getattr(result, k).count for k in kinds) == result.images == 10
    assert result.stable.count == result.correct_and_stable.count + result.wrong_and_stable.count
    assert f"{result.correct_and_stable.fraction:.1%}" in result.summary()
    assert model.training
    assert StabilityResult.model_validate_json(result.model_dump_json()) == result


def test_another_word_than_prediction_or_label_is_refused() -> None:
    subject = AnalysisSubject(Steps().eval(), grey([0.1], [0]), NormBall("Linf", 0.1))
    with pytest.raises(UserError, match="one of prediction, label, both"):
        ANALYSES.create("stability", {"subject": subject, "against": "class"})
