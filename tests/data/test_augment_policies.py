"""Jitter, AutoAugment, RandAugment and random erasing: what is drawn, and how often."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor

import buttress.models._torchvision  # noqa: F401  # torchvision may need it to be imported
from buttress.data.augment import operations as jitter
from buttress.data.augment import policies as auto
from buttress.data.augment import policies as rand
from buttress.data.augment.erasing import random_erasing
from buttress.data.augment.geometry import random_rotation
from buttress.data.augment.operations import OPERATIONS, color_jitter
from buttress.data.augment.policies import (
    OPERATION_NAMES,
    POLICIES,
    auto_augment,
    operation_amount,
    operation_amounts,
    rand_augment,
)
from buttress.system.rng import SampleRNG

MANY = 6000


def streams(n: int) -> SampleRNG:
    return SampleRNG(0, "policies", torch.arange(n))


class Calls:
    """Stands in for `apply_operations` and keeps what it was asked for."""

    def __init__(self) -> None:
        self.names: list[list[str | None]] = []
        self.amounts: list[Tensor] = []

    def __call__(self, x: Tensor, names: list[str | None], amounts: Tensor) -> Tensor:
        self.names.append(names)
        self.amounts.append(amounts)
        return x

    def of(self, turn: int, name: str) -> Tensor:
        rows = [row for row, other in enumerate(self.names[turn]) if other == name]
        return self.amounts[turn][rows]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    result = Calls()
    for module in (auto, jitter, rand):
        monkeypatch.setattr(module, "apply_operations", result)
    return result


NOTHING = torch.zeros(MANY, 3, 1, 1, dtype=torch.uint8)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_has_25_pairs_of_known_operations(policy: str) -> None:
    assert len(POLICIES[policy]) == 25
    choices = [choice for pair in POLICIES[policy] for choice in pair]
    assert len(choices) == 50
    assert {choice.name for choice in choices} <= set(OPERATIONS)
    assert all(0 <= choice.probability <= 1 and 0 <= choice.level <= 9 for choice in choices)


def test_policies_are_pinned() -> None:
    sums = {
        name: (
            round(sum(choice.probability for pair in pairs for choice in pair), 6),
            sum(choice.level for pair in pairs for choice in pair),
            Counter(choice.name for pair in pairs for choice in pair)["equalize"],
        )
        for name, pairs in POLICIES.items()
    }
    assert sums == {"cifar10": (26.7, 194, 9), "imagenet": (31.0, 159, 17)}


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_those_of_torchvision_but_for_one_probability(policy: str) -> None:
    from torchvision.transforms.autoaugment import AutoAugment, AutoAugmentPolicy

    spelt = {"color": "saturation", "shearx": "shear_x", "sheary": "shear_y"}
    spelt |= {"translatex": "translate_x", "translatey": "translate_y"}
    without = {"invert", "equalize", "autocontrast"}  # these have no levels
    theirs = [
        [(spelt.get(name.lower(), name.lower()), p, level or 0) for name, p, level in pair]
        for pair in AutoAugment(AutoAugmentPolicy(policy)).policies
    ]
    ours = [
        [(name, p, 0 if name in without else level) for name, p, level in pair]
        for pair in POLICIES[policy]
    ]
    if policy == "cifar10":
        assert ours[16] == [("equalize", 0.2, 0), ("equalize", 0.8, 0)]
        ours[16] = [("equalize", 0.2, 0), ("equalize", 0.6, 0)]
    assert ours == theirs


def test_levels_of_autoaugment() -> None:
    assert [operation_amount("posterize", level, 1) for level in range(10)] == [
        8,
        8,
        7,
        7,
        6,
        6,
        5,
        5,
        4,
        4,
    ]
    assert operation_amount("solarize", 0, 1) == 256
    assert operation_amount("solarize", 9, 1) == 0
    assert operation_amount("rotate", 9, -1) == operation_amount("rotate", 9, 1) == 30
    assert (
        operation_amount("shear_x", 9, -1)
        == -operation_amount("shear_x", 9, 1)
        == pytest.approx(-0.3)
    )
    assert operation_amount("translate_y", 9, 1) == pytest.approx(150 / 331)
    assert operation_amount("contrast", 9, 1) == pytest.approx(1.9)
    assert operation_amount("contrast", 9, -1) == pytest.approx(0.1)
    assert operation_amount("saturation", 0, -1) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_of_a_policy_happen_as_often_as_they_should(policy: str, calls: Calls) -> None:
    auto_augment(NOTHING, policy, streams(MANY))  # type: ignore[arg-type]
    for part in range(2):
        expected: defaultdict[str, float] = defaultdict(float)
        for pair in POLICIES[policy]:
            expected[pair[part].name] += pair[part].probability * MANY / 25
        counts = Counter(name for name in calls.names[part] if name)
        for name, times in expected.items():
            assert abs(counts[name] - times) < 5 * times**0.5 + 1


def test_signs_of_autoaugment_are_drawn(calls: Calls) -> None:
    auto_augment(NOTHING, "cifar10", streams(MANY))
    moves = calls.of(1, "translate_y")
    assert set(moves.abs().tolist()) == {150 / 331}
    assert 0.4 < (moves > 0).double().mean() < 0.6
    assert bool((calls.of(0, "rotate") > 0).all())


def test_randaugment_draws_evenly(calls: Calls) -> None:
    rand_augment(NOTHING, streams(MANY), num_ops=3)
    assert len(calls.names) == 3
    for names in calls.names:
        counts = Counter(names)
        assert abs(counts[None] - MANY / 2) < 200
        assert all(abs(counts[name] - MANY / 30) < 75 for name in OPERATION_NAMES)
    assert calls.names[0] != calls.names[1]


def test_randaugment_has_the_magnitudes_asked_for(calls: Calls) -> None:
    rand_augment(NOTHING, streams(MANY), num_ops=1, magnitude=6.0, std=0.5, probability=1.0)
    turns = calls.of(0, "rotate") / 3
    assert abs(turns.abs().mean() - 6) < 0.1
    assert 0.42 < turns.abs().std() < 0.58
    assert 0.4 < (turns > 0).double().mean() < 0.6
    rand_augment(NOTHING, streams(MANY), num_ops=1, magnitude=9.0, std=5.0, probability=1.0)
    assert calls.of(1, "rotate").abs().max() == 30
    assert calls.of(1, "rotate").abs().min() >= 0


def test_levels_of_randaugment() -> None:
    """Those of timm's increasing operations at magnitude 9."""
    numbers, nine = (
        torch.arange(len(OPERATION_NAMES)),
        torch.full((len(OPERATION_NAMES),), 9.0, dtype=torch.float64),
    )
    up = dict(
        zip(OPERATION_NAMES, operation_amounts(numbers, nine, torch.ones(15)).tolist(), strict=True)
    )
    down = dict(
        zip(
            OPERATION_NAMES, operation_amounts(numbers, nine, -torch.ones(15)).tolist(), strict=True
        )
    )
    whole = {"posterize": 1, "solarize": 26, "solarize_add": 99}
    signed = {"rotate": 27, "shear_x": 0.27, "shear_y": 0.27}
    signed |= {"translate_x": 0.405, "translate_y": 0.405}
    factors = dict.fromkeys(["saturation", "contrast", "brightness", "sharpness"], 0.81)
    none = dict.fromkeys(["autocontrast", "equalize", "invert"], 0.0)
    assert up == pytest.approx(none | whole | signed | {k: 1 + v for k, v in factors.items()})
    lower = {k: -v for k, v in signed.items()} | {k: 1 - v for k, v in factors.items()}
    assert down == pytest.approx(none | whole | lower)


@pytest.mark.reference
def test_levels_of_randaugment_are_those_of_timm() -> None:
    from timm.data import auto_augment as timm

    theirs = {
        "rotate": "Rotate", "posterize": "PosterizeIncreasing", "solarize": "SolarizeIncreasing",
        "solarize_add": "SolarizeAdd", "saturation": "ColorIncreasing", "shear_x": "ShearX",
        "translate_x": "TranslateXRel",
    }  # fmt: skip
    for level in torch.linspace(0, 10, 41).double().tolist():
        for name, other in theirs.items():
            result = timm.LEVEL_TO_ARG[other](level, {})[0]
            number = torch.tensor([OPERATION_NAMES.index(name)])
            options = [
                operation_amounts(
                    number, torch.tensor([level]).double(), torch.tensor([sign])
                ).item()
                for sign in (1.0, -1.0)
            ]
            assert min(abs(result - option) for option in options) < 1e-9, (name, level)


def test_jitter_draws_factors_and_orders(calls: Calls) -> None:
    asked: dict[str, Any] = {"brightness": 0.4, "saturation": 1.5, "hue": 0.1}
    color_jitter(NOTHING, streams(MANY), **asked)
    assert len(calls.names) == 3
    orders = Counter(zip(*calls.names, strict=True))
    assert len(orders) == 6
    assert all(abs(count - MANY / 6) < 150 for count in orders.values())
    bright, saturated, hue = (
        torch.cat([calls.of(turn, name) for turn in range(3)]) for name in asked
    )
    for values, low, high in ((bright, 0.6, 1.4), (saturated, 0, 2.5), (hue, -0.1, 0.1)):
        assert len(values) == MANY
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.03


def test_rotation_turns_either_way_up_to_the_limit() -> None:
    x = torch.zeros(400, 1, 41, 41)
    x[:, :, 20, 40] = 1  # the middle of the right edge
    out = random_rotation(x, 10.0, streams(400)).view(400, -1)
    where = out.argmax(1) // 41
    seen = out.amax(1) > 0
    rise = (20 - where)[seen]
    assert seen.float().mean() > 0.5
    assert rise.min() == -3  # 20 sin(10 degrees) = 3.5
    assert rise.max() in (3, 4)
    assert abs(rise.float().mean()) < 0.4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_erasing_fills_a_rectangle_with_noise_in_the_range(dtype: torch.dtype) -> None:
    x = torch.full((3000, 3, 32, 32), 200, dtype=torch.uint8)
    x = x if dtype == torch.uint8 else x / 255
    out = random_erasing(x, 0.25, streams(3000))
    assert out.dtype == dtype
    changed = (out != x).any(1)
    erased = changed.flatten(1).any(1)
    assert abs(erased.float().mean() - 0.25) < 0.03
    areas, ratios = [], []
    for mask in changed[erased]:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        height, width = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
        assert mask.sum() > 0.97 * height * width  # by chance noise may equal the image
        areas.append(height * width / 1024)
        ratios.append(width / height)
    assert 0.01 < min(areas) < 0.03
    assert 0.3 < max(areas) < 0.36
    assert abs(sum(areas) / len(areas) - 0.17) < 0.02
    assert min(ratios) > 0.2
    assert max(ratios) < 5
    noise = out[(out != x)].float() / (255 if dtype == torch.uint8 else 1)
    assert noise.min() >= 0
    assert noise.max() <= 1
    assert abs(noise.mean() - 0.5) < 0.01
    assert abs(noise.std() - 0.22) < 0.01  # the truncation takes 0.03 from a deviation of 0.25
    assert noise.min() < 0.01
    assert noise.max() > 0.99


def test_erasing_never_or_always() -> None:
    x = torch.full((50, 3, 32, 32), 200, dtype=torch.uint8)
    assert torch.equal(random_erasing(x, 0.0, streams(50)), x)
    assert bool((random_erasing(x, 1.0, streams(50)) != x).flatten(1).any(1).all())
