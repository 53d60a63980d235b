"""What an export says about a model: measured on these weights, or not said."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import buttress as bt
from buttress.export.weights import load_run_model
from buttress.models.loading.checkpoint import content_digest
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.results.robustbench import FIELD_TYPES, REQUIRED_FIELDS, read_leaderboard_entries
from buttress.results.run import SELECTED_ON_TEST_WARNING, Run
from buttress.statistics import wilson_interval
from exported_runs import THREAT, autoattack, finished_run, make_spec, verdicts


def exported(run: Run, out: Path, board: str = "digits/Linf", **how: Any) -> dict[str, Any]:
    """The leaderboard record that an export writes."""
    bt.export_run(run, out, name="Net", force=True, **how)
    content: dict[str, Any] = json.loads((out / "model_info" / board / "Net.json").read_text())
    return content


def card(out: Path) -> str:
    return (out / "README.md").read_text()


def test_the_record_has_the_fields_and_types_of_robustbench(run: Run, out: Path) -> None:
    verdicts(run, "clean", 300)
    autoattack(run, 123)

    found = exported(run, out, authors="Ada", link="https://example.org/paper")

    low, high = wilson_interval(123, 397)
    assert found == {
        "link": "https://example.org/paper",
        "name": "Net",
        "authors": "Ada",
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": "digits",
        "venue": "",
        "architecture": "vit_tiny",
        "eps": "8/255",
        "clean_acc": "75.57",
        "reported": "",
        "autoattack_acc": "30.98",
        "footnote": f"Measured by Buttress {bt.__version__} on 397 images, 95% interval "
        f"{100 * low:.2f} to {100 * high:.2f}.",
        "unreliable": False,
    }
    assert tuple(found)[: len(REQUIRED_FIELDS)] == REQUIRED_FIELDS
    assert all(type(value) is FIELD_TYPES[name] for name, value in found.items())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n": 200}, "evaluated 200 images, not exactly the 397 of the test split"),
        ({"data_fingerprint": "other pixels"}, "evaluated 397 images, not exactly the 397"),
        ({"split": "val"}, "val split"),
        ({"args": {"steps": 50}}, r"not the standard version of AutoAttack \(steps=50\)"),
        ({"args": {"version": "plus"}}, "not the standard version"),
        ({"square_queries": "skipped"}, "skipped queries"),
        ({"square_queries": ""}, "skipped queries"),
        ({"mode": "worst_case"}, "worst-case mode after other attacks"),
        ({"dataset": "folder:/gone"}, "folder:gone are not available here"),
        ({"attack": "fast"}, "not evaluated; run"),
        ({"threat": "Linf:4/255"}, None),
    ],
)
def test_the_robust_accuracy_is_autoattack_on_the_whole_test_set_or_nothing(
    changes: dict[str, Any], reason: str | None, run: Run, out: Path
) -> None:
    autoattack(run, 20, **changes)
    board = "folder/Linf" if "folder" in changes.get("dataset", "") else "digits/Linf"

    found = exported(run, out, board)

    if reason is None:  # measured at another eps than that of training: the record says which
        assert (found["eps"], found["autoattack_acc"]) == ("4/255", "5.04")
        return
    assert "autoattack_acc" not in found
    assert found["eps"] == "8/255"
    said = card(out).replace("\\", "")
    assert re.search(f"has no robust accuracy.*{reason}", said)


def test_spelt_out_defaults_are_the_standard_version(run: Run, out: Path) -> None:
    autoattack(run, 397, args={"version": "standard", "steps": 100})

    assert exported(run, out)["autoattack_acc"] == "100.00"


def test_clean_accuracy_of_some_images_is_not_that_of_the_board(run: Run, out: Path) -> None:
    verdicts(run, "clean", 10, n=20, data_fingerprint="some")

    assert exported(run, out)["clean_acc"] == ""


def test_numbers_of_other_weights_do_not_stand_beside_these(run: Run, out: Path) -> None:
    verdicts(run, "clean", 300)
    autoattack(run, 123)

    found = exported(run, out, checkpoint="last")

    assert (found["clean_acc"], "autoattack_acc" in found) == ("", False)
    text = card(out)
    assert "These weights have not been evaluated." in text
    assert "suite aa was evaluated on other weights" in text
    assert "75.57" not in text
    assert "model-index" not in text


def test_another_norm_has_a_record_of_its_own(run: Run, out: Path) -> None:
    autoattack(run, 40, name="aa-l2", threat="L2:0.5")

    assert exported(run, out, "digits/L2")["autoattack_acc"] == "10.08"
    assert "autoattack_acc" not in exported(run, out, "digits/Linf")


def test_a_standard_model_needs_no_record(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", make_spec(objective="standard"))

    bt.export_run(run, tmp_path / "out")

    assert not (tmp_path / "out" / "model_info").exists()
    assert "None: standard training" in card(tmp_path / "out")


def test_what_is_marked_untrustworthy_is_unreliable(run: Run, out: Path) -> None:
    autoattack(run, 100, warnings=["selected on the test set"])
    assert exported(run, out)["unreliable"] is False
    assert "- selected on the test set" in card(out)

    mild = {"check": "a", "severity": "warning", "message": "few images", "remedy": "take more"}
    autoattack(run, 100, findings=[mild])
    found = exported(run, out)
    assert found["unreliable"] is False  # a warning does not make it so, but goes with the number
    assert "Warning: few images; take more." in found["footnote"]
    assert "- few images; take more" in card(out)

    masked = {"check": "b", "severity": "untrustworthy", "message": "masked", "remedy": "look"}
    autoattack(run, 100, findings=[mild, masked])
    found = exported(run, out)
    assert found["unreliable"] is True
    assert "Warning: masked; look." in found["footnote"]
    assert "- masked" in card(out)


def test_a_later_diagnosis_counts_if_it_is_of_these_weights(run: Run, out: Path) -> None:
    autoattack(run, 100)
    weights = content_digest(load_run_model(run, "best").state_dict())
    masked = Finding(check="a", severity="untrustworthy", message="noise wins", remedy="look")
    diagnosis = Diagnosis(threat="Linf:0.06", dataset="digits", split="test", images=9, seed=0,
                          weights_digest=weights, data_fingerprint="", checks=(),
                          findings=(masked,))  # fmt: skip
    diagnosis.save(run.analysis_file("doctor"))
    assert exported(run, out)["unreliable"] is True
    assert "- noise wins" in card(out)

    other = diagnosis.model_copy(update={"weights_digest": "others"})
    other.save(run.analysis_file("doctor"))
    assert exported(run, out)["unreliable"] is False


def test_what_training_says_against_the_model_is_on_the_card(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r")
    run.finish({"epochs": 3, "warnings": [SELECTED_ON_TEST_WARNING]})
    bt.export_run(run, tmp_path / "out")
    assert SELECTED_ON_TEST_WARNING.split(":")[0].replace("_", "\\_") in card(tmp_path / "out")
    run.path.joinpath("done.json").unlink()
    bt.export_run(run, tmp_path / "out", force=True)
    assert "training is not finished" in card(tmp_path / "out")


def test_more_data_is_declared(tmp_path: Path) -> None:
    extra = make_spec(recipe={"extra_data": {"dataset": "extra:/home/me/ddpm.npz"}})
    found = exported(finished_run(tmp_path / "a", extra), tmp_path / "out")
    assert found["additional_data"] is True
    assert found["footnote"] == "Extra training data: extra:ddpm.npz."
    tuned = finished_run(tmp_path / "b", finetuned_from={"source": "r0"})
    found = exported(tuned, tmp_path / "out")
    assert found["additional_data"] is True
    assert found["footnote"] == "Fine-tuned from r0."


def test_corruptions_are_a_mean_over_all_or_nothing(run: Run, out: Path) -> None:
    for k in range(15):
        for s in range(1, 6):
            verdicts(run, f"c{k}-{s}", 10 * s, attack="corruption", threat="", suite="c",
                     corruption_source="digits-official",
                     args={"corruption": f"c{k}", "severity": s})  # fmt: skip
    found = exported(run, out, "digits/corruptions")
    assert found["corruptions_acc"] == f"{100 * 30 / 397:.2f}"
    assert found["eps"] is None

    verdicts(run, "c3-2", 5, attack="corruption", threat="", suite="c",
             corruption_source="digits version 1",
             args={"corruption": "c3", "severity": 2})  # fmt: skip
    assert "corruptions_acc" not in exported(run, out, "digits/corruptions")
    assert "generated here, not the official ones" in card(out)

    (run.suite_folder("c") / "c3-2.parquet").unlink()
    assert "corruptions_acc" not in exported(run, out, "digits/corruptions")
    assert "74 of 75 were evaluated" in card(out)


def test_the_card_is_read_by_the_hub_and_has_every_number(run: Run, out: Path) -> None:
    verdicts(run, "clean", 300)
    autoattack(run, 123)
    exported(run, out, link="https://example.org")

    data: Any = ModelCard(card(out)).data

    assert (data.library_name, data.pipeline_tag) == ("buttress", "image-classification")
    found = {(r.metric_name, r.metric_value) for r in data.eval_results}
    assert found == {
        ("accuracy, clean, 397 images", 0.7557),
        (f"accuracy, aa-linf {THREAT}, 397 images", 0.3098),
        ("accuracy, worst-case robust accuracy, 397 images", 0.3098),
    }
    low, high = wilson_interval(123, 397)
    row = f"| aa-linf | {THREAT} | 397 | 30.98% | {100 * low:.2f}% to {100 * high:.2f}% |"
    assert row in card(out)
    for part in ("## Load", "## Training", "## Limits", "## Provenance", "<https://exam"):
        assert part in card(out)
    assert "/home/me" not in card(out)  # the command of the run names a private folder


def test_a_suite_with_a_missing_attack_has_no_worst_case(run: Run, out: Path) -> None:
    verdicts(run, "clean", 300, suite_entries=["clean", "aa-linf", "aa-l2"])
    autoattack(run, 123, suite_entries=["clean", "aa-linf", "aa-l2"])
    exported(run, out)

    assert "| worst-case robust accuracy |" not in card(out)


def test_hostile_names_stay_text_and_inside_the_folder(tmp_path: Path) -> None:
    bad = "../../x|`y`\n# Title <script>alert(1)</script>"
    run = finished_run(tmp_path / "r")
    verdicts(run, "clean", 3, class_names=[bad] * 10)

    bt.export_run(
        run, tmp_path / "place" / "out", name=bad, authors=bad, link="javascript:alert(1)"
    )

    out = tmp_path / "place" / "out"
    body = card(out).split("---", 2)[2]
    assert "<script" not in body
    assert "\n# Title" not in body
    assert "](javascript" not in body
    assert "<javascript" not in body
    (record,) = out.glob("model_info/**/*.json")
    assert record.name == "x_y_Title_script_alert_1_script.json"
    assert [p.name for p in (tmp_path / "place").iterdir()] == ["out"]
    data: Any = ModelCard(card(out)).data
    assert data.eval_results[0].metric_name == "accuracy, clean, 397 images"


def test_what_we_write_is_what_we_read(run: Run, out: Path) -> None:
    verdicts(run, "clean", 300)
    masked = {"check": "b", "severity": "untrustworthy", "message": "masked", "remedy": "look"}
    autoattack(run, 123, findings=[masked])
    exported(run, out, authors="Ada")

    reading = read_leaderboard_entries([out / "model_info"])

    assert reading.problems == ()
    (row,) = reading.entries
    assert (row.id, row.dataset, row.leaderboard, row.threat) == ("Net", "digits", "Linf", THREAT)
    assert (row.clean_accuracy, row.robust_accuracy) == pytest.approx((0.7557, 0.3098))
    assert row.is_unreliable


@pytest.mark.reference
def test_robustbench_itself_reads_the_record(
    run: Run, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader of leaderboards, where the package and what it imports are installed."""
    template = pytest.importorskip("robustbench.leaderboard.template", exc_type=ImportError)
    verdicts(run, "clean", 300)
    autoattack(run, 123)
    content = exported(run, out)
    board = out / "model_info" / "cifar10" / "Linf"
    board.mkdir(parents=True)
    (board / "Net.json").write_text(json.dumps({**content, "dataset": "cifar10"}))
    monkeypatch.setattr(template.Environment, "get_template", lambda *a: Echo())

    with contextlib.redirect_stdout(io.StringIO()):
        page = template.generate_leaderboard("cifar10", "Linf", str(out / "model_info"))

    assert "30.98" in page
    info = sys.modules["robustbench.utils"].ModelInfo
    known = {*info.__dataclass_fields__, "external", "unreliable"}
    assert set(content) <= known


class Echo:
    """Stands for the page of RobustBench, which its package does not hold."""

    def render(self, *, models: list[dict[str, Any]], **others: Any) -> str:
        return json.dumps(models)
