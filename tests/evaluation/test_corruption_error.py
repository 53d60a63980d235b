from __future__ import annotations

import pytest
import torch
from torch import nn

from buttress.data import corrupt_dataset, list_corruptions, load_dataset
from buttress.errors import UserError
from buttress.evaluation import mean_corruption_error
from buttress.evaluation.corruption_error import ALEXNET_ERRORS
from buttress.results.suite_spec import SEVERITIES

COMMON = list_corruptions("common")


def test_alexnet_has_error_one_on_imagenet() -> None:
    assert set(ALEXNET_ERRORS) == set(COMMON)
    found = mean_corruption_error({n: [ALEXNET_ERRORS[n]] * 5 for n in COMMON}, "imagenet")
    assert found.relative_mce == pytest.approx(1)
    assert found.mce == pytest.approx(sum(ALEXNET_ERRORS.values()) / 15)


def test_the_two_means_weigh_differently() -> None:
    errors = {n: [0.1, 0.2, 0.3, 0.4, 0.5] for n in COMMON} | {"brightness": [0.0] * 5}
    found = mean_corruption_error(errors, "imagenet-rb5000")
    assert found.mce == pytest.approx(0.3 * 14 / 15)
    assert found.accuracy == pytest.approx(1 - 0.3 * 14 / 15)
    others = [0.3 / ALEXNET_ERRORS[n] for n in COMMON if n != "brightness"]
    assert found.relative_mce == pytest.approx(sum(others) / 15)
    assert found.by_corruption["fog"] == pytest.approx(0.3)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "imagenette", "cifar10+fog-3"])
def test_without_a_baseline_there_is_a_reason(dataset: str) -> None:
    found = mean_corruption_error({n: [0.25] * 5 for n in COMMON}, dataset)
    assert found.mce == pytest.approx(0.25)
    assert found.relative_mce is None
    assert dataset.partition("+")[0] in found.reason


def test_extra_corruptions_do_not_count() -> None:
    errors = {n: [0.5] * 5 for n in COMMON}
    with_extra = errors | {"spatter": [1.0] * 5}
    assert mean_corruption_error(with_extra, "cifar10") == mean_corruption_error(errors, "cifar10")


def test_what_is_missing_is_said() -> None:
    errors = {n: [0.5] * 5 for n in COMMON}
    for broken in ({n: e for n, e in errors.items() if n != "fog"}, errors | {"fog": [0.5] * 4}):
        with pytest.raises(UserError, match=r"15 corruptions.*incomplete: fog"):
            mean_corruption_error(broken, "cifar10")
    with pytest.raises(UserError, match="must lie in"):
        mean_corruption_error(errors | {"fog": [50.0] * 5}, "cifar10")
    with pytest.raises(UserError, match="unknown corruption 'mist'"):
        mean_corruption_error(errors | {"mist": [0.5] * 5}, "cifar10")


@pytest.mark.slow
def test_accuracy_falls_with_severity() -> None:
    """A small network of digits: each corruption costs accuracy, and the strongest costs most."""
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test", limit=200)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    source = torch.Generator().manual_seed(0)
    for _ in range(250):
        x, y, _ = train.take(torch.randint(len(train), (64,), generator=source))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    def error(name: str, severity: int) -> float:
        x, y, _ = corrupt_dataset(test, name, severity).take(range(len(test)))
        with torch.no_grad():
            return float((net(x).argmax(1) != y).double().mean())

    with torch.no_grad():
        clean = float((net(test.images).argmax(1) != test.labels).double().mean())
    assert clean < 0.1
    errors = {name: [error(name, s) for s in SEVERITIES] for name in COMMON}
    by_severity = [sum(e[s - 1] for e in errors.values()) / 15 for s in SEVERITIES]
    assert clean < by_severity[0] < by_severity[2] < by_severity[4]
    assert mean_corruption_error(errors, "digits").mce == pytest.approx(sum(by_severity) / 5)
