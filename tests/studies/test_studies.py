"""Study files: every shipped one is whole at every scale, and mistakes are found before a run."""

from __future__ import annotations

import csv
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from buttress.data import DATASETS, dataset_facts, load_dataset
from buttress.errors import UserError
from buttress.studies import (
    CLAIMS,
    SCALES,
    Scale,
    StudySpec,
    expand_study,
    list_studies,
    load_study,
)
from buttress.studies.published import read_csv_rows
from buttress.studies.spec import value_at_scale
from buttress.threats import Threat
from unrun import Unrun

LRS = {"low": 0.001, "high": 0.1}
RUN = {"model": "vit_tiny", "dataset": "digits", "recipe": "quickstart-standard"}


def study(**grid: Any) -> StudySpec:
    return StudySpec.parse({"name": "s", "question": "?", "grid": grid}, "study")


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param(name, scale, marks=() if scale == "smoke" else pytest.mark.slow)
        for name in list_studies()
        for scale in load_study(name).scales
    ],
)
def test_every_study_is_whole_at_every_scale(name: str, scale: Scale, unrun: Unrun) -> None:
    spec = load_study(name)
    result = unrun(name, scale)
    assert result.total_runs == len({cell.key for cell in expand_study(spec, scale).runs})
    assert result.finished_runs == 0
    assert [claim.id for claim in result.claims] == [claim.id for claim in spec.claims]


PUBLISHED = [name for name in list_studies() if load_study(name).published is not None]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_number_finds_its_row(name: str, unrun: Unrun) -> None:
    spec = load_study(name)
    assert spec.published is not None
    lines = read_csv_rows(spec.published)
    result = unrun(name, "paper")
    columns = [spec.published.columns.get(c, c) for c in result.columns]
    theirs = [c for c in columns if c in lines[0]]
    assert theirs
    shown = sum(n.published is not None for line in result.rows for n in line.values.values())
    cells = [line[c] for line in lines for c in theirs]
    assert shown >= sum(bool(c.strip()) for c in cells)


@pytest.mark.parametrize("name", [n for n in list_studies() if load_study(n).published])
def test_claims_on_published_numbers_are_as_stated(name: str, unrun: Unrun) -> None:
    """What the published tables say of each claim must be decidable or said to be not."""
    for claim in unrun(name, "paper").claims:
        assert claim.published, claim.id


def test_claim_ids_are_unique_over_all_studies() -> None:
    ids = [claim.id for name in list_studies() for claim in load_study(name).claims]
    assert sorted(ids) == sorted(set(ids))


def test_values_by_scale() -> None:
    value = {"model": {"smoke": "a", "paper": "b"}, "args": {"x": 1}}
    assert [value_at_scale(value, s)["model"] for s in SCALES] == ["a", "b", "b", "b"]
    assert value_at_scale(value, "mini")["args"] == {"x": 1}


def test_the_grid_is_the_product_with_seeds_and_without_what_is_left_out() -> None:
    result = expand_study(
        study(
            base=RUN,
            axes={
                "lr": {
                    x: {"overrides": [f"optimizer.lr={v}"]}
                    for x, v in (("low", 0.001), ("high", 0.1))
                },
                "net": {"vit": {}, "resnet": {"model": "resnet_tiny"}},
            },
            exclude=[{"lr": "high", "net": "vit"}],
            seeds=[0, 1],
        ),
        "smoke",
    ).runs
    assert len(result) == 6
    assert len({cell.key for cell in result}) == 6
    assert {c.spec.recipe.optimizer.lr for c in result} == {0.001, 0.1}


def test_a_run_that_begins_with_another_has_a_key_before_that_is_trained() -> None:
    spec = study(
        base=RUN,
        axes={
            "stage": {
                "first": {},
                "second": {"init_from": {"stage": "first"}, "overrides": ["epochs=1"]},
            }
        },
    )
    first, second = expand_study(spec, "smoke").runs
    assert second.init_key == first.key
    assert second.spec.initial_weights == f"run:{first.key}"


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"base": {**RUN, "model": "vit_tinyy"}}, "vit_tiny"),
        ({"base": {**RUN, "recipe": "quickstart"}}, "recipe"),
        ({"base": {**RUN, "dataset": "digitz"}}, "digits"),
        ({"base": {**RUN, "modell": "x"}}, "modell"),
        ({"base": {**RUN, "overrides": ["epochz=1"]}}, "epochs"),
        ({"base": {"model": "vit_tiny", "dataset": "digits"}}, "recipe"),
        ({"base": RUN, "suites": ["quickstarts"]}, "quickstart"),
        ({"base": RUN, "analyses": ["sparsit"]}, "sparsity"),
        ({"base": RUN, "labels": {"net": ["a"]}}, "labels"),
        ({"base": RUN, "axes": {"a": {"x": {"init_from": {"a": "y"}}}}}, "not in the study"),
        ({"base": RUN, "axes": {"a": {"x": {"init_from": {"a": "x"}}}}}, "cycle"),
        ({"base": RUN, "axes": {"a": {"x": {}, "y": {"model_args": {"wings": 2}}}}}, "wings"),
    ],
)
def test_a_mistake_is_found_before_the_first_run(grid: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        expand_study(study(**grid), "smoke")


def test_claims_and_columns_are_checked_too() -> None:
    raw = {
        "name": "s",
        "question": "?",
        "grid": {"base": RUN, "columns": {"a": {"metric": "clean"}}},
    }
    wrong = {"id": "X", "statement": "x", "predicate": {"name": "topp", "args": {}}}
    with pytest.raises(UserError, match="topp"):
        expand_study(StudySpec.parse({**raw, "claims": [wrong]}, "study"), "smoke")
    other = {
        "id": "X",
        "statement": "x",
        "predicate": {"name": "top", "args": {"column": "b", "where": {}}},
    }
    with pytest.raises(UserError, match="b"):
        expand_study(StudySpec.parse({**raw, "claims": [other]}, "study"), "smoke")


def test_facts_are_those_of_the_data(tmp_path: Path) -> None:
    digits = load_dataset("digits", "train")
    assert dataset_facts("digits").mean == digits.mean
    for name in DATASETS.names():
        if "facts" not in DATASETS.entry(name).metadata:
            continue
        try:
            train, val, test = (load_dataset(name, part) for part in ("train", "val", "test"))
        except Exception:  # not on this machine
            continue
        known = dataset_facts(name)
        assert known[:7] == (
            len(train), len(val), len(test), train.num_classes, train.shape, train.mean, train.std,
        )  # fmt: skip
        assert known.budgets == test.budgets


def test_published_tables_are_numbers() -> None:
    for path in (Path(__file__).parents[2] / "src/buttress/studies/tables").glob("*.csv"):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        assert all(len(row) == len(rows[0]) for row in rows), path.name


def test_every_kind_of_claim_is_documented() -> None:
    assert all(CLAIMS.entry(name).summary for name in CLAIMS.names())


@pytest.mark.parametrize(
    ("grid", "new_key"),
    [
        ({"base": {**RUN, "set": ["epochs=1"]}}, "overrides"),
        ({"base": RUN, "axes": {"a": {"x": {"start": {"a": "y"}}}}}, "init_from"),
        ({"base": RUN, "columns": {"clean": {"of": "clean"}}}, "metric"),
        ({"base": RUN, "only": {"a": ["x"]}}, "labels"),
        ({"together": ["rademacher"]}, "group_analyses"),
    ],
)
def test_a_key_of_an_older_version_is_refused_with_its_new_name(
    grid: dict[str, object], new_key: str
) -> None:
    with pytest.raises(UserError, match=f"it is now `{new_key}`"):
        expand_study(study(**grid), "smoke")


def test_a_study_runs_on_another_dataset() -> None:
    own, other = (expand_study(load_study("finetune-cifar"), "smoke", d) for d in (None, "cifar10"))
    keys = {run.key for run in other.runs}
    assert other.name == "finetune-cifar-cifar10"
    assert "cifar10" in other.study.description
    assert keys.isdisjoint(run.key for run in own.runs)
    ratio = dataset_facts("cifar10").budgets["Linf"] / dataset_facts("digits").budgets["Linf"]
    for before, after in zip(own.runs, other.runs, strict=True):
        assert (after.spec.dataset, after.labels) == ("cifar10", before.labels)
        assert before.spec.recipe.threat is not None
        assert after.spec.recipe.threat is not None
        eps = Threat.parse(before.spec.recipe.threat).eps * ratio
        assert Threat.parse(after.spec.recipe.threat).eps == pytest.approx(eps)
        assert (after.init_key is None) == (before.init_key is None)
        assert after.init_key is None or after.init_key in keys
    assert [run.spec.initial_weights for run in other.runs if run.init_key] == [
        f"run:{run.init_key}" for run in other.runs if run.init_key
    ]


@pytest.mark.parametrize(
    ("name", "dataset", "words"),
    [
        ("finetune-hires", "cifar100", "3 datasets"),
        ("bounds", "cifar100", "has none"),
        ("table1", "cifar1000", "cifar100"),
        ("table1", "imagenette", None),
    ],
)
def test_another_dataset_must_fit_the_study(name: str, dataset: str, words: str | None) -> None:
    with nullcontext() if words is None else pytest.raises(UserError, match=words):
        expand_study(load_study(name), "mini", dataset)


def test_a_study_has_its_own_scales() -> None:
    quickstart = load_study("quickstart")
    assert quickstart.choose_scale(None) == "smoke"
    assert quickstart.choose_scale("digits") == "digits"
    with pytest.raises(UserError, match="choose from smoke, digits"):
        expand_study(quickstart, "mini")
    with pytest.raises(UserError, match="huge"):
        quickstart.choose_scale("huge")


def test_a_column_that_a_scale_does_not_compute_is_empty(unrun: Unrun) -> None:
    for name in ("ablation", "white-box", "black-box", "table1", "corruptions"):
        answer, scaled = unrun(name, "smoke"), load_study(name).at_scale("smoke")
        for column, spec in scaled.columns.items():
            is_run = all(label in scaled.axes[axis] for axis, label in spec.where.items())
            reasons = {line.values[column].missing_reason for line in answer.rows}
            expected = {"not computed at scale smoke"}
            assert (reasons == expected) == (not (spec.metric and is_run)), (name, column)
