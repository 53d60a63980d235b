"""`compare`: what is real is found, what is not is not, and what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import buttress as bt
from buttress.cli.main import run_cli
from buttress.errors import ButtressError, RunError, UserError
from buttress.results.attack_record import write_attack_record
from buttress.results.comparison import summarize_comparison
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.results.evaluation import load_evaluation
from buttress.results.run import Run
from buttress.statistics import mcnemar_power
from report_runs import make_run, make_spec, write_flags
from verdicts import evaluation, pair

N = 5000


def found_in(draws: int, difference: float, split: float, seed: int) -> float:
    """How often a planted difference is called real."""
    source = np.random.default_rng(seed)
    calls = []
    for _ in range(draws):
        a, b = pair(source, N, 0.5, difference, split)
        sides = [evaluation({"pgd": f}) for f in (a, b)]
        calls.append(bt.compare(*sides, attack="pgd").row("pgd").is_significant)
    return float(np.mean(calls))


@pytest.mark.parametrize("split", [0.3, 0.49])
def test_a_planted_difference_of_three_points_is_found_as_often_as_theory_says(
    split: float,
) -> None:
    power = mcnemar_power(N, split, 0.03)
    assert power > 0.8
    assert found_in(100, 0.03, split, seed=1) == pytest.approx(power, abs=0.1)


def test_no_difference_is_found_in_at_most_five_of_hundred() -> None:
    exact = mcnemar_power(N, 0.2, 0.0)  # how often the test errs, computed
    assert 0.04 < exact <= 0.05
    assert found_in(200, 0.0, 0.2, seed=2) <= 0.085  # 200 draws of 5% stay below with p = 0.98


def test_many_rows_err_together_in_at_most_five_of_hundred() -> None:
    source = np.random.default_rng(3)
    calls = []
    for _ in range(120):
        names = ("clean", "x", "y")
        drawn = {n: pair(source, 400, 0.6, 0.0, 0.2) for n in names}
        sides = [evaluation({n: drawn[n][k] for n in names}) for k in (0, 1)]
        calls.append(any(r.is_significant for r in bt.compare(*sides).rows))
    assert np.mean(calls) <= 0.1


def test_the_numbers_are_those_of_the_shared_images() -> None:
    a = evaluation({"clean": [1, 1, 1, 0, 1], "pgd": [1, 0, 1, 0, 1]}, ids=[7, 3, 5, 1, 9])
    b = evaluation({"clean": [0, 1, 1, 1], "pgd": [0, 1, 0, 1]}, ids=[1, 3, 5, 7])
    result = bt.compare(a, b)
    assert result.images == 4
    assert [r.name for r in result.rows] == ["clean", "pgd", "worst_case"]
    clean, worst = result.row("clean"), result.row()
    assert (clean.a.accuracy, clean.b.accuracy, clean.difference) == (0.75, 0.75, 0.0)
    # Survivors: A keeps 7 and 5, B keeps 3 and 7.
    assert (worst.only_a, worst.only_b) == (1, 1)
    assert any("only the 4 images" in note for note in result.notes)


def test_swapping_the_sides_turns_every_sign() -> None:
    a, b = pair(np.random.default_rng(0), 800, 0.5, 0.05, 0.2)
    one, two = evaluation({"clean": a | b, "pgd": a}), evaluation({"clean": b, "pgd": b})
    for ours, theirs in zip(bt.compare(one, two).rows, bt.compare(two, one).rows, strict=True):
        assert theirs.difference == -ours.difference
        assert theirs.interval == (-ours.interval.high, -ours.interval.low)
        assert (theirs.p_value, theirs.p_value_holm, theirs.detectable_difference) == (
            ours.p_value,
            ours.p_value_holm,
            ours.detectable_difference,
        )
        assert (theirs.only_a, theirs.only_b) == (ours.only_b, ours.only_a)
        assert (theirs.a, theirs.b) == (ours.b, ours.a)


def test_a_run_against_itself_is_exactly_zero() -> None:
    flags = np.random.default_rng(0).random(500) < 0.6
    same = evaluation({"clean": flags, "pgd": flags & (np.arange(500) % 3 > 0)}, weights_digest="w")
    result = bt.compare(same, same)
    assert {(r.difference, r.p_value, r.p_value_holm) for r in result.rows} == {(0.0, 1.0, 1.0)}
    assert all(r.interval.low == -r.interval.high for r in result.rows)
    assert "both sides have the same model weights" in result.notes
    assert summarize_comparison(result)[0].startswith(
        "No significant difference in worst-case robust accuracy"
    )


def test_p_values_are_corrected_for_all_rows() -> None:
    source = np.random.default_rng(4)
    drawn = {n: pair(source, 500, 0.6, d, 0.2) for n, d in (("clean", 0.05), ("x", 0), ("y", 0))}
    sides = [evaluation({n: f[k] for n, f in drawn.items()}) for k in (0, 1)]
    whole, alone = bt.compare(*sides), bt.compare(*sides, attack="clean")
    assert (
        alone.row("clean").p_value_holm == alone.row("clean").p_value == whole.row("clean").p_value
    )
    assert whole.row("clean").p_value_holm > whole.row("clean").p_value
    assert [r.name for r in alone.rows] == ["clean"]


REFUSED = [
    ({"attack": "apgd"}, "different attack"),
    ({"threat": "Linf:0.2"}, "different threat"),
    ({"args": {"steps": 9}}, r"different args\.steps"),
    ({"mode": "worst_case"}, "different mode"),
    ({"suite": "other"}, "different suite.*--attack"),
    ({"dataset": "cifar10", "data_fingerprint": "x"}, "dataset 'digits'.*'cifar10'"),
    ({"split": "val", "data_fingerprint": "x"}, "split 'test'.*'val'"),
    ({"data_fingerprint": "other pixels"}, "different pixels"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_was_not_judged_alike_is_refused(change: dict[str, Any], words: str) -> None:
    made = {
        "attack": "pgd",
        "args": {"steps": 5},
        "threat": "Linf:0.1",
        "data_fingerprint": "pixels",
    }
    one = evaluation({"pgd": [1, 0, 1]}, **made)
    two = evaluation({"pgd": [1, 1, 1]}, **{**made, **change})
    with pytest.raises(UserError, match=words):
        bt.compare(one, two)
    if "suite" in change:
        assert bt.compare(one, two, attack="pgd").images == 3


def test_other_attacks_images_and_labels_are_refused() -> None:
    one = evaluation({"clean": [1, 1], "pgd": [1, 0]})
    with pytest.raises(UserError, match=r"only .* has pgd; compare a shared one.*clean"):
        bt.compare(one, evaluation({"clean": [1, 0]}))
    with pytest.raises(UserError, match=r"only .* has pgd"):
        bt.compare(one, evaluation({"clean": [1, 0]}), attack="worst_case")
    assert bt.compare(one, evaluation({"clean": [1, 0]}), attack="clean").images == 2
    with pytest.raises(UserError, match="no image is shared by"):
        bt.compare(one, evaluation({"clean": [1, 1], "pgd": [1, 0]}, ids=[5, 6]))
    with pytest.raises(UserError, match="no attack 'apgd'; it has clean, pgd and worst_case"):
        bt.compare(one, one, attack="apgd")
    with pytest.raises(UserError, match=r"incomplete \(missing: apgd\)"):
        bt.compare(one, evaluation({"pgd": [1, 0]}, suite_entries=["pgd", "apgd"]))
    mixed = evaluation({"clean": [1, 1], "pgd": [1, 0]})
    mixed.records["pgd"].metadata["weights_digest"] = "other"  # type: ignore[index]
    with pytest.raises(RunError, match="different weights"):
        bt.compare(one, mixed)
    other = evaluation({"clean": [1, 1], "pgd": [1, 0]})
    for record in other.records.values():
        record.labels[0] += 1
    with pytest.raises(UserError, match="different labels"):
        bt.compare(one, other)


def seeds_of(
    source: np.random.Generator, shift: float, images: np.ndarray, count: int = 3
) -> list[bt.Evaluation]:
    noise = source.normal(size=(count, len(images)))
    rows = shift + images + noise > 0
    return [evaluation({"clean": row}, weights_digest=f"{shift}-{k}") for k, row in enumerate(rows)]


def test_groups_of_seeds() -> None:
    source = np.random.default_rng(0)
    images = source.normal(0, 2, 1000)
    a, b = seeds_of(source, 0.6, images), seeds_of(source, 0.0, images, 4)
    result = bt.compare(a, b, attack="clean")
    row = result.row("clean")
    assert row.is_significant
    assert row.a.accuracy == pytest.approx(np.mean([e.accuracy["clean"] for e in a]))
    assert row.a.std == pytest.approx(np.std([e.accuracy["clean"] for e in a], ddof=1))
    assert row.only_a is None
    assert not result.paired_seeds  # evaluations alone do not say their seeds
    assert "on average over seeds" in summarize_comparison(result)[0]
    null = bt.compare(seeds_of(source, 0.0, images), b, attack="clean")
    assert not null.row("clean").is_significant
    with pytest.raises(UserError, match="both sides need several seeds"):
        bt.compare(a[0], b)
    with pytest.raises(UserError, match="twice on one side"):
        bt.compare([a[0], a[0]], b)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three seeds of two trainings with a suite each; A is better."""
    source = np.random.default_rng(1)
    images = source.normal(0, 2, 300)
    for model, shift in (("vit_tiny", 1.0), ("resnet_tiny", 0.0)):
        for seed in range(3):
            run = make_run(tmp_path / f"{model}-{seed}", make_spec(model, seed=seed))
            clean = shift + images + source.normal(size=300) > 0
            write_flags(run, "clean", clean, weights_digest=f"{model}{seed}")
            attacked = clean & (source.random(300) < 0.8)
            write_flags(run, "pgd-linf", attacked, weights_digest=f"{model}{seed}")
    return tmp_path


def test_runs_and_folders_of_records_give_the_same(runs: Path) -> None:
    a, b = runs / "vit_tiny-0", runs / "resnet_tiny-0"
    result = bt.compare(a, str(b))
    again = bt.compare(a / "eval" / "quick", b / "eval")
    assert again.rows == result.rows
    assert result.a.label == f"{a} (vit_tiny, pgd_at, seed 0)"
    assert "the runs differ in model" in result.notes
    assert any("depend on the training seed" in note for note in result.notes)
    with pytest.raises(UserError, match="no evaluation 'slow', only quick"):
        bt.compare(a, b, suite="slow")


def test_suites_are_chosen_or_asked_for(runs: Path) -> None:
    a, b = (make_run(runs / n) for n in ("vit_tiny-0b", "resnet_tiny-0b"))
    for suite in ("one", "two"):
        write_flags(a, "clean", [1, 0, 1], suite=suite)
    write_flags(b, "clean", [1, 1, 1], suite="two")
    assert bt.compare(a, b).suite == "two"
    write_flags(b, "clean", [1, 1, 1], suite="one")
    with pytest.raises(UserError, match="choose with --suite: one, two"):
        bt.compare(a, b)
    assert bt.compare(a, b, suite="one").images == 3
    with pytest.raises(UserError, match=r"no suite was evaluated on all runs: .* has one, two"):
        bt.compare(a, runs / "vit_tiny-0")


def test_seeds_of_runs_pair_up_in_any_order(runs: Path) -> None:
    a = [runs / f"vit_tiny-{k}" for k in (0, 1, 2)]
    b = [runs / f"resnet_tiny-{k}" for k in (2, 0, 1)]
    result = bt.compare(a, b)
    assert result.paired_seeds
    assert result.a.seeds == result.b.seeds == (0, 1, 2)
    assert bt.compare(a, sorted(b)).rows == result.rows
    with pytest.raises(UserError, match=r"differ in their seed only, but .* differ in model"):
        bt.compare([a[0], b[0]], b)


def test_the_command_says_it_in_words(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(runs / "vit_tiny-0"), str(runs / "resnet_tiny-0")
    assert run_cli(["compare", a, b]) == 0
    said = capsys.readouterr().out
    assert "300 shared images, suite quick" in said
    assert "Significant difference in worst-case robust accuracy: A is" in said
    assert "is detected with 80% power" in said
    assert "only A" in said
    assert run_cli(["compare", a, b, "--attack", "worst_case", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["rows"]) == ["worst_case"]
    row = result["rows"]["worst_case"]
    assert row["interval"][0] < row["difference"] < row["interval"][1]
    assert row["bootstrap_interval"] == pytest.approx(row["interval"], abs=0.01)
    assert row["bootstrap_interval"] != row["interval"]
    assert row["p_value"] == row["p_value_holm"]
    assert result["words"]


def test_numbers_that_cannot_be_trusted_are_marked(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = Run(runs / "vit_tiny-0"), Run(runs / "resnet_tiny-0")
    command = ["compare", str(a.path), str(b.path)]
    assert run_cli(command) == 0
    assert "trust" not in capsys.readouterr().out
    weights = load_evaluation(b.suite_folder("quick")).records["clean"].metadata["weights_digest"]
    for hashed, marked in (("others", False), (weights, True)):
        diagnosis(hashed).save(b.analysis_file("doctor"))
        assert run_cli(command) == 0
        said = capsys.readouterr().out
        assert said.count("B not trustworthy") == (3 if marked else 0)
        assert ("Accuracies of B are not trustworthy" in said) == marked
        assert ("note: B: flat; look" in said) == marked
    assert run_cli([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["a"]["is_trustworthy"]
    assert not result["b"]["is_trustworthy"]


def diagnosis(weights: str) -> Diagnosis:
    flat = Finding(check="zero_gradient", severity="untrustworthy", message="flat", remedy="look")
    return Diagnosis(threat="Linf:0.06", dataset="digits", split="test", images=9, seed=0,
                     weights_digest=weights, data_fingerprint="", checks=(),
                     findings=(flat,))  # fmt: skip


def test_other_corrupted_images_are_another_corruption() -> None:
    made = {"attack": "corruption", "args": {"corruption": "fog", "severity": 1}}
    one = evaluation({"fog-1": [1, 0, 1]}, **made, corruption_source="cifar10+fog-1 version 1")
    two = evaluation({"fog-1": [1, 1, 1]}, **made, corruption_source="cifar10+fog-1-official")
    assert bt.compare(one, one).images == 3
    with pytest.raises(UserError, match="different corruption_source"):
        bt.compare(one, two)
    with pytest.raises(UserError, match="different corruption_source"):
        bt.compare(one, two, attack="fog-1")
    aside = evaluation(
        {"fog-1": [1, 1, 1]},
        **made,
        corruption_source="cifar10+fog-1 version 1",
        in_worst_case=False,
    )
    with pytest.raises(UserError, match="different in_worst_case"):
        bt.compare(one, aside)


def test_the_command_takes_groups(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ([str(runs / f"{m}_tiny-{k}") for k in range(3)] for m in ("vit", "resnet"))
    assert run_cli(["compare", *a, "--against", *b, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["paired_seeds"]
    assert result["b"]["seeds"] == [0, 1, 2]
    assert run_cli(["compare", "--suite", "quick", *a, "--against", *b]) == 0
    assert "seeds 0, 1, 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [(["x"], "expected two runs"), (["x", "y", "z"], "expected two runs"),
     (["x", "--against"], "--against needs"), (["nothing", "nowhere"], "does not exist")],
)  # fmt: skip
def test_mistakes_are_one_line(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["compare", *args]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "Traceback" not in said.err


def test_damaged_records_are_named(runs: Path) -> None:
    record = runs / "vit_tiny-0" / "eval" / "quick" / "clean.parquet"
    record.write_bytes(record.read_bytes()[:-40])
    with pytest.raises(ButtressError, match=r"clean\.parquet"):
        bt.compare(runs / "vit_tiny-0", runs / "resnet_tiny-0")


def test_an_evaluation_that_stopped_early_pairs_by_id(tmp_path: Path) -> None:
    early = {"interval_width": 0.05, "images_available": 6, "data_fingerprint": "first block"}
    one = evaluation({"clean": [1, 0, 1]}, ids=[4, 0, 2], **early)
    for record in one.records.values():
        write_attack_record(tmp_path / "early" / f"{record.name}.parquet", record)
    two = evaluation({"clean": [1, 1, 1, 1, 1, 1]}, data_fingerprint="all")
    result = bt.compare(tmp_path / "early", two)
    assert (result.images, result.row("clean").only_b) == (3, 1)
    assert any("stopped early" in note for note in result.notes)
