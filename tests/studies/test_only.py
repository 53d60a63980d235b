"""Part of a study: the named runs, what they begin with, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buttress.errors import UserError
from buttress.studies import (
    StudySpec,
    expand_study,
    load_study,
    parse_label_filter,
    plan_study,
    select_runs,
)
from buttress.system.cpu import available_cpus


def study() -> StudySpec:
    base = {"model": "vit_tiny", "dataset": "digits", "recipe": "quickstart-at", "train_limit": 100}
    axes = {
        "stage": {
            "one": {},
            "two": {"init_from": {"stage": "one"}},
            "three": {"init_from": {"stage": "two"}, "overrides": ["epochs=2"]},
        },
        "size": {"small": {}, "large": {"model": "resnet_tiny"}},
    }
    grid = {"base": base, "axes": axes, "labels": {"mini": {"size": ["small"]}, "smoke": {}}}
    return StudySpec.parse({"name": "s", "question": "?", "grid": grid}, "study")


def places(texts: list[str]) -> list[tuple[str, ...]]:
    expanded = expand_study(study(), "smoke")
    runs = select_runs(expanded.runs, parse_label_filter(texts, expanded))
    return [tuple(run.labels.values()) for run in runs]


def test_labels_choose_runs_and_bring_what_they_begin_with() -> None:
    assert len(places([])) == 6
    assert places(["stage=one"]) == [("one", "small"), ("one", "large")]
    assert places(["stage=three", "size=large"]) == [
        ("one", "large"), ("two", "large"), ("three", "large"),
    ]  # fmt: skip
    assert len(places(["stage=one, two", "stage=three"])) == 6


@pytest.mark.parametrize("text", ["", "stage", "stage=", "place=one", "stage=four", "size=large"])
def test_a_wrong_part_is_refused_with_what_there_is(text: str) -> None:
    expanded = expand_study(study(), "mini")
    with pytest.raises(UserError, match=r"AXIS=LABEL|choose from|small"):
        parse_label_filter([text], expanded)


def test_a_seed_is_selected_like_a_label() -> None:
    table1 = expand_study(load_study("table1"), "mini")
    runs = select_runs(table1.runs, parse_label_filter(["seed=1", "architecture=VGG"], table1))
    assert [(run.seed, run.labels["training"]) for run in runs] == [(1, "adversarial")]
    with pytest.raises(UserError, match=r"axis seed has no label '2'.*choose from 0, 1"):
        parse_label_filter(["seed=2"], table1)


def test_a_plan_of_a_part_is_that_part(tmp_path: Path) -> None:
    table1 = expand_study(load_study("table1"), "mini")
    only = parse_label_filter(["architecture=VGG,CvT", "training=vanilla"], table1)
    plan = plan_study(table1, tmp_path, device_name="cpu-core", label_filter=only)
    assert sorted(run.model for run in plan.runs) == ["cvt_mini", "vgg_mini"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_cores_that_were_not_given_do_not_count() -> None:
    given = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(given)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, given)
    assert available_cpus() == len(given)
