"""Shipped recipes: each is valid, says where it is from, starts, and has the published values.

The tables below are written by hand from the papers and their code, not from the recipes.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from buttress.config import RECIPES
from buttress.data import DATASETS
from buttress.errors import UserError
from buttress.models.core import is_known
from buttress.results.run_spec import AugmentationSpec, LRScheduleSpec, Recipe
from buttress.results.suite_spec import list_suites
from buttress.threats.core import Threat
from buttress.training import list_recipes, load_recipe, train
from buttress.training.loop import Trainer
from buttress.training.schedules import learning_rate_factor

PUBLISHED = [
    name for name in list_recipes() if not name.startswith(("quickstart", "mini", "smoke"))
]
NO_NUMBER = {"generalization-trades"}  # whose settings and results are not published


def lr(recipe: Recipe, epoch: float) -> float:
    return recipe.optimizer.lr * learning_rate_factor(recipe.schedule, epoch, recipe.epochs)


def eps(recipe: Recipe, epoch: float) -> float:
    trainer = Trainer.__new__(Trainer)
    assert recipe.threat is not None
    trainer.recipe, trainer.threat = recipe, Threat.parse(recipe.threat)
    threat = trainer._threat_at(epoch)
    assert threat is not None
    return threat.eps


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_says_what_it_is_and_where_from(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description.endswith(".")
    assert recipe.source
    assert recipe.cost.startswith(f"{recipe.epochs} epochs x ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_give_a_paper_and_a_number(name: str) -> None:
    recipe = load_recipe(name)
    lines = RECIPES.path(name).read_text().split("description:")[0]
    head = " ".join(lines.split())
    assert all(f"# {part}:" in lines for part in ("Source", "Cost", "Expected"))
    assert "arXiv:" in recipe.source
    assert all(word.strip(",;") in head for word in recipe.source.split())
    assert bool(recipe.expected) == (name not in NO_NUMBER)
    numbers = [w for w in recipe.expected.replace(",", "").split() if w[0].isdigit() and "." in w]
    assert all(number in head for number in numbers)
    assert recipe.select_on == "val"
    assert "select_on=test" in head or name == "robustwrn-fastat-imagenet"


def test_augmentation_null_is_none() -> None:
    recipe = load_recipe("mini-at", ("augmentation=null",))
    assert recipe.augmentation == AugmentationSpec()
    assert load_recipe("mini-at").augmentation != AugmentationSpec()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_head_has_the_commands_that_train_and_evaluate(name: str) -> None:
    head = RECIPES.path(name).read_text().split("description:")[0]
    train_line, evaluate_line = re.findall(r"buttress ((?:train|finetune|evaluate) .+)", head)[:2]
    assert f"--recipe {name} --out runs/{name}" in train_line
    model = re.search(r"--model (\S+)", train_line)
    assert is_known(model[1] if model else "xcit_s12")
    data = re.search(r"--data (\S+)", train_line)
    assert data is not None
    assert data[1] in DATASETS.names()
    command, _, suite = evaluate_line.partition(" --suite ")
    assert command == f"evaluate runs/{name}"
    assert suite in list_suites()
    assert "unmeasured here" in head


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_overrides_in_a_head_are_accepted(name: str) -> None:
    head = RECIPES.path(name).read_text().split("description:")[0]
    for line in head.splitlines():
        for override in line.split("--set ")[1:]:
            quoted = override.startswith("'")
            change = override[1:].split("'")[0] if quoted else override.split()[0].rstrip(",.;")
            assert load_recipe(name, (change,)) != load_recipe(name), change


# objective, its arguments, threat, optimizer, rate, decay, batch, epochs
FACTS: dict[str, tuple[str, dict[str, Any], str | None, str, float, float, int, int]] = {
    "generalization-vanilla": ("standard", {}, None, "adamw", 2.5e-4, 0.05, 128, 100),
    "generalization-at": (
        "pgd_at", {"steps": 15, "rel_step": 0.1}, "8/255", "adamw", 2.5e-4, 0.05, 128, 100,
    ),
    "generalization-trades": (
        "trades", {"steps": 15, "beta": 6}, "8/255", "adamw", 2.5e-4, 0.05, 128, 100,
    ),
    "robustwrn-sat": (
        "pgd_at", {"steps": 10, "start": "gaussian", "noise": 2 / 255}, "8/255",
        "sgd", 0.1, 2e-4, 128, 100,
    ),
    "robustwrn-trades": (
        "trades", {"steps": 10, "noise": 0.001, "beta": 6}, "8/255", "sgd", 0.1, 2e-4, 128, 100,
    ),
    "robustwrn-mart": (
        "mart", {"steps": 10, "noise": 2 / 255, "beta": 6}, "8/255", "sgd", 0.1, 2e-4, 128, 100,
    ),
    "robustwrn-rst": (
        "rst", {"steps": 10, "noise": 0.001, "beta": 6}, "8/255", "sgd", 0.1, 5e-4, 256, 200,
    ),
    "robustwrn-fastat-imagenet": (
        "fast", {"rel_step": 1.25}, "2/255", "sgd", 0.4, 1e-4, 512, 15,
    ),
    "xcit-imagenet-eps4": ("fast", {"rel_step": 1.5}, "4/255", "adamw", 5e-4, 0.5, 512, 110),
    "xcit-imagenet-eps8": (
        "pgd_at", {"steps": 2, "rel_step": 0.75}, "8/255", "adamw", 5e-4, 0.5, 512, 110,
    ),
    "deit-baseline": ("fast", {"rel_step": 1.5}, "4/255", "adamw", 5e-4, 0.05, 512, 110),
    "xcit-finetune-hires": ("fast", {"rel_step": 1.5}, "8/255", "adamw", 5e-5, 0.5, 512, 30),
    "xcit-finetune-cifar": (
        "trades", {"steps": 10, "rel_step": 0.15, "start": "random", "beta": 6}, "8/255",
        "adamw", 2e-4, 0.5, 512, 22,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_values_are_the_published_ones(name: str) -> None:
    recipe = load_recipe(name)
    objective, args, radius, optimizer, rate, decay, batch, epochs = FACTS[name]
    assert recipe.objective.name == objective
    for key, value in args.items():
        close = value if isinstance(value, str) else pytest.approx(value)
        assert recipe.objective.args[key] == close
    threat = None if recipe.threat is None else Threat.parse(recipe.threat)
    assert threat == (None if radius is None else Threat.parse(f"Linf:{radius}"))
    assert (recipe.optimizer.name, recipe.batch_size, recipe.epochs) == (optimizer, batch, epochs)
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == pytest.approx((rate, decay))
    assert recipe.optimizer.decay_1d_parameters == (not name.startswith(("xcit", "deit")))


def test_every_published_recipe_has_facts() -> None:
    assert set(FACTS) == set(PUBLISHED)


# The learning rate in (0-based, fractional) epochs, computed by hand.
LOW = 5e-6 + 0.0245 * (2.5e-4 - 5e-6)  # the cosine at 90 of 100 epochs
ALIGNED = {0: 0.0, 0.9: 0.0, 1: 2.5e-4 / 8, 7: 2.5e-4 * 7 / 8, 8: 2.5e-4, 9: 2.5e-4, 99: LOW}
STEPS = {0: 0.1, 74.99: 0.1, 75: 0.01, 89.99: 0.01, 90: 0.001, 99: 0.001}
XCIT = {0: 1e-6, 5: 2.505e-4, 10: 4.8801e-4, 50: 2.55e-4, 50.9: 2.55e-4, 100: 1e-5, 109: 1e-5}
RATES: dict[str, dict[float, float]] = {
    "generalization-vanilla": ALIGNED,
    "generalization-at": ALIGNED,
    "generalization-trades": ALIGNED,
    "robustwrn-sat": STEPS,
    "robustwrn-trades": STEPS,
    "robustwrn-mart": STEPS,
    "robustwrn-fastat-imagenet": {
        0: 0.0, 0.5: 0.2, 1: 0.4, 3.5: 0.22, 6: 0.04, 9: 0.022, 12: 0.004, 15: 0.0004,
    },
    "xcit-imagenet-eps4": XCIT,
    "xcit-imagenet-eps8": XCIT,
    "deit-baseline": {0: 1e-6, 1: 1e-6 + 4.99e-4 / 5, 50: 2.55e-4, 100: 1e-5, 109: 1e-5},
    "xcit-finetune-hires": {0: 1e-6, 1: 1.08e-5, 10: 2.75e-5, 20: 5e-6, 29: 5e-6},
    "xcit-finetune-cifar": {0: 1e-6, 1: 4.08e-5, 10: 1.025e-4, 20: 5e-6, 21: 5e-6},
}  # fmt: skip


@pytest.mark.parametrize("name", RATES)
def test_the_learning_rate_is_the_published_one(name: str) -> None:
    recipe = load_recipe(name)
    values = {epoch: lr(recipe, epoch) for epoch in RATES[name]}
    assert values == pytest.approx(RATES[name], rel=1e-3)


def test_the_rate_of_self_training_is_the_published_one_without_its_shift() -> None:
    recipe = load_recipe("robustwrn-rst")
    for epoch in (0, 1, 100, 200, 399):  # of the source, which has two for each of ours
        published = 0.05 * (1 + math.cos(math.pi * (epoch - 1) / 400))
        assert lr(recipe, epoch / 2) == pytest.approx(published, abs=0.1 * math.pi / 2 / 400)
        unshifted = 0.05 * (1 + math.cos(math.pi * epoch / 400))
        assert lr(recipe, epoch / 2) == pytest.approx(unshifted)


@pytest.mark.parametrize(("name", "full"), [("xcit-imagenet-eps4", 4), ("xcit-imagenet-eps8", 8)])
def test_eps_of_the_light_recipe_grows_between_epochs(name: str, full: int) -> None:
    recipe = load_recipe(name)
    shares = {0: 0.0, 0.99: 0.0, 5: 0.5, 5.7: 0.5, 9.99: 0.9, 10: 1.0, 109: 1.0}
    values = {epoch: eps(recipe, epoch) * 255 / full for epoch in shares}
    assert values == pytest.approx(shares)
    smooth = load_recipe(name, ("eps_per_epoch=false",))
    assert eps(smooth, 5.7) * 255 / full == pytest.approx(0.57)
    assert not recipe.scale_step_with_eps


def test_details_that_only_the_codes_have() -> None:
    for name in ("sat", "trades", "mart"):
        recipe = load_recipe(f"robustwrn-{name}")
        assert (recipe.clip_grad_norm, recipe.normalize) == (5.0, False)
        # The source looks at epochs e >= 50, counted from 0.
        assert recipe.validation.from_epoch - 1 == 50
        assert recipe.validation.attack.args == {"steps": 20, "rel_step": 0.1}
    assert load_recipe("robustwrn-rst").clip_grad_norm is None
    for name in ("xcit-imagenet-eps4", "xcit-imagenet-eps8", "deit-baseline"):
        recipe = load_recipe(name)
        assert (recipe.label_smoothing, recipe.normalize) == (0.1, False)
    assert load_recipe("xcit-finetune-cifar").label_smoothing == 0
    assert load_recipe("xcit-finetune-hires").normalize == "half"
    baseline = load_recipe("deit-baseline").augmentation
    assert (baseline.mixup, baseline.cutmix, baseline.random_erasing) == (0.8, 1.0, 0.25)
    assert baseline.rand_augment is not None
    light = load_recipe("xcit-imagenet-eps4").augmentation
    assert (light.mixup, light.cutmix, light.random_erasing, light.rand_augment) == (0, 0, 0, None)


def test_points_of_a_rate_are_joined_by_lines() -> None:
    rate = LRScheduleSpec(name="points", points=((1, 0.5), (3, 1.0)))
    values = [learning_rate_factor(rate, epoch, 4) for epoch in (0, 1, 2, 3, 4)]
    assert values == pytest.approx([0.5, 0.5, 0.75, 1, 1])
    for points in ((), ((1, 0), (1, 1)), ((2, 0), (1, 1))):
        with pytest.raises(ValueError, match="increasing epochs"):
            LRScheduleSpec(name="points", points=points)


NET = """
from torch import nn
def net(num_classes=10):
    return nn.Sequential(
        nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(196, num_classes),
    )
"""


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_starts_in_small(name: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    recipe = load_recipe(name)
    changes = [
        "epochs=1", "batch_size=32", "validation.limit=16",
        "validation.attack={name: pgd, args: {steps: 1}}",
        "eps_zero_epochs=0", "eps_warmup_epochs=0", "schedule.warmup_epochs=0",
    ]  # fmt: skip
    if "steps" in recipe.objective.args:
        changes.append("objective.args.steps=1")
    if recipe.objective.name == "rst":
        changes.append("extra_data.dataset=digits")
    run = train(
        f"{tmp_path}/net.py:net", "digits", name, tmp_path / "run", limit=64,
        overrides=tuple(changes), device="cpu",
    )  # fmt: skip
    (row,) = run.history
    assert math.isfinite(row["loss"])
    assert row["val_clean"] is not None
    assert (row["val_robust"] is None) == (recipe.threat is None)
    kept = run.spec.recipe
    assert (kept.augmentation, kept.optimizer) == (recipe.augmentation, recipe.optimizer)
    if recipe.normalize == "half":
        assert (run.spec.mean, run.spec.std) == ((0.5,) * 3, (0.5,) * 3)


def test_the_thesis_has_other_rates_than_its_code() -> None:
    for name in ("xcit-imagenet-eps4", "xcit-imagenet-eps8", "deit-baseline"):
        recipe = load_recipe(f"{name}:thesis")
        assert recipe.name == f"{name}:thesis"
        assert recipe.schedule.warmup_epochs == 5
        assert (lr(recipe, 0), lr(recipe, 109)) == pytest.approx((5e-6, 5e-5))
    assert load_recipe("deit-baseline:imagenet100").schedule.warmup_epochs == 10
    cifar = load_recipe("xcit-finetune-cifar:thesis", ("epochs=21",))
    assert (cifar.augmentation.random_erasing, cifar.epochs) == (0, 21)
    with pytest.raises(UserError, match="no variant 'paper'; its variants: thesis"):
        load_recipe("xcit-finetune-cifar:paper")


def test_a_rate_grows_with_the_batch() -> None:
    rates = {
        changes: load_recipe("xcit-imagenet-eps4", changes).scaled_optimizer().lr
        for changes in [
            (), ("batch_size=1024",), ("batch_size=2048", "optimizer.lr_scaling=sqrt"),
        ]
    }  # fmt: skip
    assert list(rates.values()) == pytest.approx([5e-4, 1e-3, 1e-3])
    assert load_recipe("mini-at", ("batch_size=1024",)).scaled_optimizer().lr == 3e-3
