"""Objectives, schedules, recipes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from buttress.errors import UserError
from buttress.records.spec import Optimiser, Schedule
from buttress.streams import Streams
from buttress.threat import Threat
from buttress.training import OBJECTIVES, list_recipes, load_recipe
from buttress.training.objectives import Step
from buttress.training.optimise import build_optimiser, rate_factor
from conftest import images, small_net

# How often one step moves the BatchNorm statistics, as each objective's docstring says.
BATCHNORM_MOVES = {
    "standard": 1,
    "pgd_at": 1,
    "fast": 1,
    "trades": 2,
    "mart": 2,
    "alp": 1,
    "fat": 1,
    "gairat": 1,
    "multi_norm": 1,
}


def a_step(n: int = 16) -> Step:
    x, y = images(n)
    return Step(x, y, Threat("Linf", 0.05), Streams(0, "train", torch.arange(n)))


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_every_objective_is_finite_and_falls_on_one_batch(name: str) -> None:
    model, step = small_net().train(), a_step()
    model[3] = nn.Identity()  # no dropout, so that the loss of two steps can be compared
    objective = OBJECTIVES.create(name, {})
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        loss = objective.loss(model, step)
        assert loss.total.isfinite()
        assert loss.logits.shape == (16, 10)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        losses.append(loss.total.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_every_objective_moves_batchnorm_as_often_as_it_says(name: str) -> None:
    model = small_net().train()
    OBJECTIVES.create(name, {}).loss(model, a_step())
    assert int(model[1].num_batches_tracked) == BATCHNORM_MOVES[name]
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


def test_standard_is_cross_entropy() -> None:
    model, step = small_net(), a_step()
    loss = OBJECTIVES.create("standard", {}).loss(model, step)
    torch.testing.assert_close(loss.total, F.cross_entropy(model(step.x), step.y))


def test_pgd_at_trains_on_worse_images_inside_the_ball() -> None:
    seen: list[torch.Tensor] = []

    class Watch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.detach().clone())
            return self.net(x)

    model, step = Watch(), a_step()
    loss = OBJECTIVES.create("pgd_at", {"steps": 3}).loss(model, step)
    assert len(seen) == 4  # three attack passes and the training pass
    assert float((seen[-1] - step.x).abs().max()) <= 0.05 + 1e-6
    assert loss.total.item() > F.cross_entropy(model.net(step.x), step.y).item()


def test_schedules_go_through_known_points() -> None:
    cosine = Schedule(name="cosine", warmup_epochs=2, warmup_from=0.1, final=0.01)
    assert rate_factor(cosine, 0, 10) == pytest.approx(0.1)
    assert rate_factor(cosine, 1, 10) == pytest.approx(0.55)
    assert rate_factor(cosine, 2, 10) == pytest.approx(1.0)
    assert rate_factor(cosine, 6, 10) == pytest.approx(0.01 + 0.99 * 0.5)
    assert rate_factor(cosine, 10, 10) == pytest.approx(0.01)
    step = Schedule(name="step", milestones=(75, 90), factor=0.1)
    factors = [rate_factor(step, e, 100) for e in (0, 74.9, 75, 90)]
    assert factors == pytest.approx([1, 1, 0.1, 0.01])
    assert rate_factor(Schedule(name="constant"), 5, 10) == 1
    assert math.isfinite(rate_factor(Schedule(name="cosine", warmup_epochs=5), 5, 5))


def test_vectors_are_left_out_of_weight_decay_only_if_asked() -> None:
    model = small_net()
    spec = Optimiser(name="adamw", lr=1e-3, weight_decay=0.5, decay_vectors=False)
    groups = build_optimiser(model, spec).param_groups
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0]
    assert all(p.ndim > 1 for p in groups[0]["params"])
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    everything = build_optimiser(model, Optimiser(lr=0.1, weight_decay=5e-4)).param_groups
    assert [g["weight_decay"] for g in everything] == [5e-4]


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_is_valid_and_says_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.about


def test_mistakes_in_recipes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'quickstart-at'"):
        load_recipe("quickstart-ta")
    with pytest.raises(
        UserError, match=r"unknown key 'optimiser.momentun', did you mean 'momentum'"
    ):
        load_recipe("quickstart-at", ("optimiser.momentun=0.9",))
    with pytest.raises(UserError, match=r"did you mean 'pgd_at'"):
        load_recipe("quickstart-at", ("objective.name=pgdat",))
    with pytest.raises(UserError, match="8/255 if you meant"):
        load_recipe("quickstart-at", ("threat=Linf:8",))
    with pytest.raises(UserError, match="needs a threat"):
        load_recipe("quickstart-standard", ("objective=pgd_at",))
    with pytest.raises(UserError, match="no argument 'stepz'"):
        load_recipe("quickstart-at", ("objective.args={stepz: 3}",))
    (tmp_path / "broken.yaml").write_text("epochs: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load_recipe(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="mapping of keys"):
        load_recipe(tmp_path / "list.yaml")
