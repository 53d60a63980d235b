"""Leaderboard records of others: read as they come, and what is wrong in them is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from buttress.errors import UserError
from buttress.results.robustbench import (
    FIELD_TYPES,
    LeaderboardEntry,
    leaderboard_dataset,
    read_leaderboard_entries,
)

# The forms that the published files have: one of AutoAttack, an early one, one of corruptions, one
# with numbers of both kinds of corruption, and one with a lower number that others found.
SAMPLES: dict[str, dict[str, Any]] = {
    "cifar10/Linf/Rice2020Overfitting": {
        "link": "https://arxiv.org/abs/2002.11569",
        "name": "Overfitting in adversarially robust deep learning",
        "authors": "Leslie Rice, Eric Wong, J. Zico Kolter",
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": "cifar10",
        "venue": "ICML 2020",
        "architecture": "WideResNet-34-20",
        "eps": "8/255",
        "clean_acc": "85.34",
        "reported": "58",
        "autoattack_acc": "53.42",
    },
    "cifar10/L2/Augustin2020Adversarial": {
        "name": "Adversarial Robustness on In- and Out-Distribution Improves Explainability\n",
        "additional_data": True,
        "dataset": "cifar10",
        "eps": "0.5",
        "clean_acc": "91.08",
        "AA": "72.91",
    },
    "cifar10/corruptions/Calian2021Defending": {
        "dataset": "cifar10",
        "eps": None,
        "clean_acc": "94.93",
        "corruptions_acc": "92.17",
    },
    "imagenet/corruptions/Tian2022Deeper_DeiT-B": {
        "dataset": "imagenet",
        "eps": "4/255",
        "clean_acc": "80.32",
        "reported": "",
        "corruptions_acc_2d": "62.88",
        "corruptions_acc_3d": "64.32",
        "corruptions_mce_2d": "47.06",
    },
    "cifar10/Linf/Bai2024MixedNUTS": {
        "dataset": "cifar10",
        "eps": "8/255",
        "clean_acc": "95.19",
        "autoattack_acc": "70.08",
        "external": "69.71",
        "footnote": "It uses an ensemble of networks.",
        "number_forward_passes": 2,
        "unreliable": True,
    },
}


def write(root: Path, name: str, content: Any) -> Path:
    path = root / "model_info" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read_one(root: Path, content: Any) -> tuple[LeaderboardEntry | None, tuple[str, ...]]:
    result = read_leaderboard_entries([write(root, "cifar10/Linf/X", content)])
    return (result.entries[0] if result.entries else None), result.problems


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    for name, content in SAMPLES.items():
        write(tmp_path, name, content)

    result = read_leaderboard_entries([tmp_path / "model_info"])

    assert result.problems == ()
    seen = {
        r.id: (r.dataset, r.leaderboard, r.threat, r.clean_accuracy, r.robust_accuracy)
        for r in result.entries
    }
    expected = {
        "Rice2020Overfitting": ("cifar10", "Linf", "Linf:8/255", 0.8534, 0.5342),
        "Augustin2020Adversarial": ("cifar10", "L2", "L2:0.5", 0.9108, 0.7291),
        "Calian2021Defending": ("cifar10", "corruptions", "", 0.9493, 0.9217),
        "Tian2022Deeper_DeiT-B": ("imagenet", "corruptions", "", 0.8032, 0.6288),
        "Bai2024MixedNUTS": ("cifar10", "Linf", "Linf:8/255", 0.9519, 0.7008),
    }
    assert {k: v[:3] for k, v in seen.items()} == {k: v[:3] for k, v in expected.items()}
    for name, values in expected.items():
        assert seen[name][3:] == pytest.approx(values[3:])
    nuts = next(r for r in result.entries if r.id == "Bai2024MixedNUTS")
    assert nuts.is_unreliable
    assert nuts.lowest_reported_accuracy == pytest.approx(0.6971)
    assert next(r for r in result.entries if "Aug" in r.id).title.endswith("Explainability")


def test_the_sample_pins_the_names_and_types_of_the_fields() -> None:
    whole = {**SAMPLES["cifar10/Linf/Rice2020Overfitting"], "external": "1", "footnote": "",
             "unreliable": False, "corruptions_acc": "1", "corruptions_mce": "1",
             "corruptions_acc_3d": "1", "corruptions_mce_3d": "1"}  # fmt: skip
    assert {name: type(value) for name, value in whole.items()} == dict(FIELD_TYPES)


def test_a_single_file_and_the_same_file_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "cifar10/Linf/A", SAMPLES["cifar10/Linf/Rice2020Overfitting"])
    assert len(read_leaderboard_entries([path, path, tmp_path]).entries) == 1


@pytest.mark.parametrize(("value", "share"), [
    ("53.42", 0.5342), (53.42, 0.5342), (" 53.42 % ", 0.5342), (0, 0.0), ("0.00", 0.0),
    (100, 1.0), ("", None), ("-", None), (None, None), ("N/A", None),
])  # fmt: skip
def test_numbers_come_in_many_spellings(value: Any, share: float | None, tmp_path: Path) -> None:
    row, problems = read_one(
        tmp_path, {"dataset": "cifar10", "clean_acc": "90", "autoattack_acc": value}
    )
    assert row is not None
    assert row.robust_accuracy == (None if share is None else pytest.approx(share))
    assert problems == ()


@pytest.mark.parametrize(("name", "value"), [
    ("autoattack_acc", "about half"), ("autoattack_acc", "101"), ("autoattack_acc", -1),
    ("autoattack_acc", True), ("autoattack_acc", ["53"]), ("autoattack_acc", "nan "),
    ("autoattack_acc", 1e400), ("eps", "8 of 255"), ("eps", {"a": 1}), ("link", ["x"]),
    ("unreliable", "maybe"), ("unreliable", 3), ("venue", False), ("eps", "8"),
])  # fmt: skip
def test_a_wrong_type_is_named_and_taken_as_missing(name: str, value: Any, tmp_path: Path) -> None:
    given = {"dataset": "cifar10", "clean_acc": 90, name: value}

    row, problems = read_one(tmp_path, given)

    assert row is not None
    assert row.clean_accuracy == 0.9
    if value != "nan ":  # a way to say "none"
        (problem,) = problems
        assert problem.startswith(f"X.json: {name!r} must be ")
    fields = {"autoattack_acc": row.robust_accuracy, "eps": row.threat, "link": row.link,
              "unreliable": row.is_unreliable, "venue": row.venue}  # fmt: skip
    assert not fields[name]


@pytest.mark.parametrize(("content", "word"), [
    ("{half", "JSON"), ("[1, 2]", "one JSON object"), ("", "JSON"), ("[" * 100_000, "JSON"),
    ({"dataset": "cifar10"}, "no accuracy"), ({"clean_acc": "90"}, "'dataset'"),
    ({"dataset": 3.5, "clean_acc": "x"}, "no accuracy"), ("\x00\xff", "JSON"), ("null", "object"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_named(content: Any, word: str, tmp_path: Path) -> None:
    row, problems = read_one(tmp_path, content)
    assert row is None
    assert any(word in problem for problem in problems)
    assert all(problem.startswith("X.json") for problem in problems)


def test_a_file_that_lies_nowhere_has_no_threat(tmp_path: Path) -> None:
    path = tmp_path / "A.json"
    path.write_text(json.dumps(SAMPLES["cifar10/Linf/Rice2020Overfitting"]))
    (problem,) = read_leaderboard_entries([path]).problems
    assert "folder named by the threat model (Linf, L2, L1, corruptions)" in problem
    with pytest.raises(UserError, match="no such file or folder"):
        read_leaderboard_entries([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    assert "contains no JSON" in read_leaderboard_entries([tmp_path / "empty"]).problems[0]


def test_data_sets_by_the_names_of_the_boards() -> None:
    assert leaderboard_dataset("imagenet-rb5000") == "imagenet"
    assert leaderboard_dataset("CIFAR10") == "cifar10"
    assert leaderboard_dataset("folder:/home/me/x") == "folder"
