"""Analyses against known answers, and on every small architecture."""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from buttress.analysis import ANALYSES, DoesNotApply, Subject, is_standalone, is_together
from buttress.analysis.core import settled
from buttress.analysis.sparsity import says_sparsity, sparsity, weight_groups
from buttress.data import load_dataset
from buttress.models import create_model, list_models
from buttress.threat import Threat

# Arguments that make an analysis short, for those that have them, and for single ones.
FEW = {"points": 5, "directions": 2, "lanczos_steps": 4, "classes": 2}
SMALL: dict[str, dict[str, Any]] = {
    "convergence": {"ks": (1, 2), "reference": 3, "seeds": 2, "limit": 4},
}
OF_ONE_RUN = [e.name for e in ANALYSES if not is_together(e) and not is_standalone(e)]


def subject(model: nn.Module) -> Subject:
    return Subject(model.eval(), load_dataset("digits", "test", limit=12), Threat("Linf", 0.1))


def test_sparsity_of_known_weights() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1, bias=True), nn.Flatten(), nn.Linear(2, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.0, 0.009, 1.0, -0.5, 0.5, 0.0101]).view(2, 3, 1, 1))
        model[0].bias.fill_(100.0)  # biases do not count
        model[2].weight.copy_(torch.tensor([[0.0, -0.001]] * 4))
    found = sparsity(subject(model), bins=4)
    assert found.largest == 1.0
    assert found.weights == 14
    assert found.ratio == pytest.approx((2 + 8) / 14)
    assert {p.component: (p.ratio, p.weights) for p in found.components}["convolution"] == (
        pytest.approx(2 / 6), 6,
    )  # fmt: skip
    assert sum(found.counts["all"]) == 14
    assert found.edges == (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert [(p.name, p.component, p.weights) for p in found.layers] == [
        ("0.weight", "convolution", 6), ("2.weight", "other", 8),
    ]  # fmt: skip
    assert [p.ratio for p in found.layers] == [pytest.approx(2 / 6), 1.0]


class Begun(Subject):
    """As if it came from a run that began with all weights equal."""

    def initial_model(self) -> nn.Module:
        model = copy.deepcopy(self.model)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
        return model


def test_sparsity_of_the_initial_weights_is_against_their_own_largest() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
    nn.init.eye_(model[1].weight)
    bare = subject(model)
    found = sparsity(Begun(model, bare.data, bare.threat))
    assert found.initial is not None
    assert (found.ratio, found.initial.ratio, found.initial.largest) == (9 / 12, 0.0, 0.5)
    assert "before training 0.0%" in says_sparsity(found)
    without = sparsity(bare)
    assert without.initial is None
    assert "bare model" in without.no_initial
    assert "bare model" in says_sparsity(without)


@pytest.mark.parametrize("name", list_models("tiny"))
def test_every_weight_of_every_family_is_in_one_group(name: str) -> None:
    model = create_model(name, num_classes=10, image_size=32)
    groups = weight_groups(model)
    assert sum(len(w) for w in groups.values()) == sum(
        p.numel() for p in model.parameters() if p.ndim >= 2
    )


@pytest.mark.parametrize("model", ["pvt_v2_tiny", "wrn_tiny"])
@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_every_analysis_runs_saves_and_draws(name: str, model: str, tmp_path: Path) -> None:
    entry = ANALYSES.entry(name)
    few = {k: v for k, v in FEW.items() if k in inspect.signature(entry.value).parameters}
    given = {"subject": subject(create_model(model, seed=0)), **few, **SMALL.get(name, {})}
    try:
        result = ANALYSES.create(name, given)
    except DoesNotApply as reason:
        pytest.skip(str(reason))
    again = entry.extra["result"].model_validate_json(result.model_dump_json())
    assert again == result
    figure = Figure(figsize=(8, 4))
    entry.extra["plot"]({"a": result, "b": again}, figure)
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 2000


def test_the_gallery_shows_the_same_images_for_every_model() -> None:
    first, second = (
        ANALYSES.create(
            "gallery", {"subject": subject(create_model("vit_tiny", seed=s)), "count": 3}
        )
        for s in (0, 1)
    )
    assert [e.id for e in first.examples] == [e.id for e in second.examples]
    assert all(0 < e.distance <= 0.1 * (1 + 1e-5) for e in first.examples)
    assert len({e.label for e in first.examples}) == 3


def test_a_result_is_saved_under_its_defaults_too() -> None:
    """A default that changes later must not pass an old result off as a new one."""
    entry = ANALYSES.entry("sparsity")
    assert settled(entry, {"bins": 5}) == {"threshold": 0.01, "bins": 5}
    assert settled(entry, None) == settled(entry, {"threshold": 0.01})
    for other in ANALYSES:
        whole = settled(other, {})
        assert json.loads(json.dumps(whole, allow_nan=False)) == whole
