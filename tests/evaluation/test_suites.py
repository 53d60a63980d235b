"""The suites that come with the package, suites of one's own, and their budgets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import buttress as bt
from buttress.config import SUITES
from buttress.data import Dataset
from buttress.data.core import CIFAR_BUDGETS, IMAGENET_BUDGETS
from buttress.data.datasets.digits import DIGITS_BUDGETS
from buttress.errors import UserError
from buttress.evaluation.suite import (
    SuiteEntry,
    SuiteTarget,
    default_suite,
    load_suite,
    resolve_suite,
)
from buttress.results.attack_record import AttackRecord
from buttress.results.suite_spec import SuiteSpec
from buttress.threats import THREATS, NormBall, Threat
from conftest import small_net

SETS = {"cifar10": CIFAR_BUDGETS, "imagenette": IMAGENET_BUDGETS, "digits": DIGITS_BUDGETS}
# Each attack in small: the suite is tested here, not the attack.
SMALL = {
    "autoattack": {"steps": 3, "queries": 10},
    "fast": {"steps": 2, "queries": 10},
    "gama": {"steps": 4},
    "apgd-ce": {"steps": 3},
    "pgd": {"steps": 3},
    "pgd_dense_l1": {"steps": 3},
    "cw": {"steps": 3},
    "cw_batch_sum": {"steps": 3},
    "sparse_pgd": {"steps": 3},
    "sigma_zero": {"steps": 3},
    "patch_pgd": {"steps": 2, "restarts": 2},
    "grid": {"angles": 3, "shifts": 2, "refine": 2},
}


def resolved(suite: object, dataset: str = "cifar10") -> dict[str, SuiteEntry]:
    size = 160 if dataset == "imagenette" else 32
    target = SuiteTarget(SETS[dataset], size, dataset)
    found = resolve_suite(load_suite(suite), target)  # type: ignore[arg-type]
    return {entry.name: entry for entry in found}


def in_small(name: str) -> SuiteSpec:
    spec = load_suite(name)
    lines = [
        line.model_copy(update={"args": {**line.args, **SMALL.get(line.attack, {})}})
        for line in spec.entries
    ]
    return spec.model_copy(update={"entries": tuple(lines)})


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Some digits, with labels that make a network right on most of them."""
    data = bt.load_dataset("digits", "test", limit=12, image_size=8)
    labels = small_net()(data.images).argmax(1)
    labels[::5] = (labels[::5] + 1) % 10
    found = Dataset.from_arrays(data.images, labels, name="digits", classes=data.classes)
    return found


@pytest.mark.parametrize("dataset", SETS)
@pytest.mark.parametrize("name", bt.list_suites())
def test_every_suite_resolves_and_says_where_it_is_from(name: str, dataset: str) -> None:
    spec = load_suite(name)
    assert spec.description
    assert spec.source
    assert "\n# Source: " in "\n" + SUITES.path(name).read_text()
    entries = resolved(name, dataset)
    assert next(iter(entries)) == "clean"
    assert len(entries) > 1


@pytest.mark.parametrize("name", bt.list_suites())
def test_every_suite_runs_and_its_worst_case_is_the_minimum_per_image(
    name: str, digits: Dataset
) -> None:
    model = small_net()
    found = bt.evaluate(model, digits, in_small(name))
    spec, labels = load_suite(name), digits.labels.numpy()
    assert list(found.records) == list(resolved(name, "digits"))
    flags = [
        (record.predictions == labels) & ~np.isin(record.ids, fooled_by_queries(record))
        for record in found.records.values()
        if not record.is_corruption or spec.corruptions_in_worst_case
    ]
    joint = np.min(np.stack(flags).astype(int), axis=0)
    assert np.array_equal(found.is_robust, joint == 1)
    assert found.worst_case == joint.mean()
    assert 0 < found.accuracy["clean"] < 1


def fooled_by_queries(record: AttackRecord) -> list[int]:
    """Images that the cross-check of an evaluation fools where the attack itself does not."""
    return list((record.metadata.get("cross_check") or {}).get("fooled_ids", ()))


def test_generalization_has_the_published_budgets_and_steps() -> None:
    small, large = resolved("generalization"), resolved("generalization", "imagenette")
    names = ["clean", "pgd-linf", "aa-linf", "pgd-l2", "pgd-l1"]
    assert list(small) == list(large) == names
    assert [str(small[n].threat) for n in names[1:]] == [
        "Linf:8/255", "Linf:8/255", "L2:1.5", "L1:40",
    ]  # fmt: skip
    assert [str(large[n].threat) for n in names[1:]] == [
        "Linf:8/255", "Linf:8/255", "L2:8", "L1:1600",
    ]  # fmt: skip
    pgd = {n: entry for n, entry in small.items() if "pgd" in n}
    steps = {n: e.args["rel_step"] * e.threat.eps for n, e in pgd.items() if e.threat is not None}
    assert steps["pgd-linf"] == pytest.approx(0.6 / 255)
    assert steps["pgd-l2"] == pytest.approx(0.1125)
    assert steps["pgd-l1"] == pytest.approx(3.0)
    assert all(small[n].args["steps"] == 20 for n in steps)
    assert all(small[n].args["keep"] == "last" for n in steps)


def test_the_strong_form_adds_the_budgets_of_the_field_once() -> None:
    found = resolved("generalization-strong")
    assert {n: str(e.threat) for n, e in found.items() if e.threat} == {
        "fast-linf": "Linf:8/255",
        "fast-l2": "L2:1.5",
        "fast-l1": "L1:40",
        "fast-l2-field": "L2:0.5",
        "fast-l1-field": "L1:12",
    }
    assert "fast-linf-field" in resolved("generalization-strong", "imagenette")


def test_robustwrn_follows_its_code() -> None:
    found = resolved("robustwrn")
    pgd = found["pgd-20"]
    assert pgd.threat == NormBall("Linf", 8 / 255)
    assert pgd.args["rel_step"] * pgd.threat.eps == pytest.approx(0.8 / 255)
    assert (pgd.args["start"], pgd.args["keep"]) == ("unclipped", "last")
    assert found["gama-100"].args["steps"] == 100


@pytest.mark.parametrize("name", ["unseen", "unseen-fast"])
def test_unseen_has_every_threat_model_at_its_usual_budget(name: str) -> None:
    small, large = resolved(name), resolved(name, "imagenette")
    assert {e.threat.kind for e in small.values() if e.threat} == set(THREATS.names())
    assert str(small["patch"].threat) == "patch:5"
    assert str(large["patch"].threat) == "patch:50"
    assert str(small["spatial"].threat) == "spatial:30,3"
    assert small["l0"].threat == Threat.parse("L0:24")
    assert str(small["jpeg-l1"].threat) == "jpeg-l1:64"


def test_a_budget_of_any_kind_is_that_of_the_suite() -> None:
    budgets = {"cifar10": {"patch": 3, "spatial": "10,1"}, "others": "data"}
    entries = ["pgd-patch", "grid:spatial", "pgd:patch:data"]
    raw = {"name": "mine", "budgets": budgets, "entries": entries}
    spec = SuiteSpec.parse(raw, "mine")
    found = [str(e.threat) for e in resolve_suite(spec, SuiteTarget(CIFAR_BUDGETS, 32, "cifar10"))]
    assert found == ["None", "patch:3", "spatial:10,1", "patch:5"]
    other = resolve_suite(spec, SuiteTarget(CIFAR_BUDGETS, 32, "digits"))
    assert [str(e.threat) for e in other] == ["None", "patch:5", "spatial:30,3"]


def test_an_attack_alone_takes_its_own_kind_of_threat_model() -> None:
    spec = load_suite(["pgd", "sparse_pgd", "patch_pgd", "grid"])
    found = [str(e.threat) for e in resolve_suite(spec, SuiteTarget(CIFAR_BUDGETS, 32, "cifar10"))]
    assert found[1:] == ["Linf:8/255", "L0:24", "patch:5", "spatial:30,3"]


def test_entries_with_commas_in_their_budgets() -> None:
    spec = load_suite("clean,grid:spatial:30,3,pgd:patch:5,0,0,pgd:L0:72,values,pgd-jpeg-l1")
    assert [(e.attack, e.threat) for e in spec.entries[1:]] == [
        ("grid", "spatial:30,3"), ("pgd", "patch:5,0,0"), ("pgd", "L0:72,values"),
        ("pgd", "jpeg-l1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("threat", "attack"),
    [(None, "fast"), ("L2", "fast"), ("patch:3", "patch_pgd"), ("L0", "sparse_pgd"),
     ("spatial:9,1", "grid"), ("flow:1", "fast")],
)  # fmt: skip
def test_the_default_suite_attacks_in_any_threat_model(threat: str | None, attack: str) -> None:
    (entry,) = default_suite(small_net(), threat).entries
    assert (entry.attack, entry.threat) == (attack, threat or "Linf")


def test_a_data_set_without_a_budget_is_named() -> None:
    with pytest.raises(UserError, match=r"no Linf eps for dataset 'flowers102', only for cifar"):
        resolve_suite(
            load_suite("generalization"), SuiteTarget(IMAGENET_BUDGETS, 224, "flowers102")
        )
    spec = SuiteSpec.parse(
        {"name": "mine", "budgets": {"folder": {"l2": "1/2"}}, "entries": ["pgd-l2", "pgd-l1"]},
        "mine",
    )
    with pytest.raises(UserError, match="no L1 eps for dataset 'folder:some/place'"):
        resolve_suite(spec, SuiteTarget(CIFAR_BUDGETS, 32, "folder:some/place"))


def test_budgets_of_a_suite_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "budgets:\n  cifar10: {linf: 4/255}\n  others: data\n"
        "entries: [pgd-linf, 'pgd:Linf:data', 'pgd:Linf:0.1']\n"
    )
    known = {n: e.threat for n, e in resolved(path).items()}
    assert known == {
        "clean": None,
        "pgd-linf": NormBall("Linf", 4 / 255),
        "pgd:Linf:data": NormBall("Linf", 8 / 255),
        "pgd:Linf:0.1": NormBall("Linf", 0.1),
    }
    assert resolved(path, "digits")["pgd-linf"].threat == NormBall("Linf", 0.06)
    (tmp_path / "list.yaml").write_text("- clean\n- pgd-linf\n- corruption:fog:3\n")
    assert list(resolved(tmp_path / "list.yaml")) == ["clean", "pgd-linf", "fog-3"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"entries": [{"name": "x"}]}, "exactly one of `attack` and `corruption`"),
        (
            {"entries": [{"attack": "pgd", "corruption": "fog"}]},
            "exactly one of `attack` and `corruption`",
        ),
        ({"entries": [{"corruption": "fog", "threat": "L2"}]}, "no `threat`"),
        ({"entries": [{"corruption": "fog", "severity": 6}]}, "1 to 5"),
        ({"entries": [{"attack": "pgd", "threat": "L2", "severity": 1}]}, "needs `corruption`"),
        ({"entries": ["corruption"]}, "corruption:fog:3"),
        ({"entries": ["corruption:fog:x"]}, "corruption:fog:3"),
        ({"entries": ["corruption:fog:3:4"]}, "corruption:fog:3"),
        ({"entries": ["corruptions:7"]}, "1 to 5"),
        ({"budgets": {"cifar10": {"L3": 1}}, "entries": ["clean"]}, "one of .*Linf"),
        ({"budgets": {"cifar10": "other"}, "entries": ["clean"]}, "budgets"),
        ({"budgets": ["cifar10"], "entries": ["clean"]}, "budgets"),
    ],
)
def test_mistakes_in_a_suite_are_explained(raw: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        SuiteSpec.parse(raw, "mine")


def test_unknown_corruptions_and_repeated_ones_are_explained() -> None:
    with pytest.raises(UserError, match="did you mean 'fog'"):
        resolved(["corruption:fogg:3"])
    with pytest.raises(UserError, match="two entries named 'fog-3'"):
        resolved(["corruptions:3", "corruption:fog:3"])


def test_corruptions_are_written_in_four_ways() -> None:
    assert len(resolved(["corruptions"])) == 1 + 75
    assert len(resolved(["corruptions:3"])) == 1 + 15
    assert list(resolved(["corruption:fog"]))[1:] == [f"fog-{s}" for s in range(1, 6)]
    one = resolved([{"corruption": "fog", "severity": 3}, {"corruption": "spatter", "severity": 1}])
    assert one["fog-3"].args == {"corruption": "fog", "severity": 3}
    assert "spatter-1" in one, "extra ones only by name"
