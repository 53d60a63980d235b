"""What a study will cost: passes that are right, hours that follow from them, no data needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from buttress.attacks import ATTACKS
from buttress.data import dataset_facts, load_dataset
from buttress.engine.cost import PassEstimate, max_passes
from buttress.errors import UserError
from buttress.evaluation import evaluate
from buttress.models import create_model
from buttress.results.core import write_record_json
from buttress.studies import StudySpec, load_study, make_jobs, plan_study
from buttress.studies.grid import expand_study
from buttress.studies.jobs import RunJob, RunStatus, TaskUsage, macs_of, read_status, tasks_of_job
from buttress.studies.speed import DEVICES, SpeedModel, fit_speed_model, get_device
from buttress.threats.norm_ball import Threat

LINF = Threat.parse("Linf:8/255")
RUN = {"model": "vit_tiny", "dataset": "digits", "recipe": "quickstart-at", "train_limit": 100}


def study(**grid: object) -> StudySpec:
    whole = {"base": RUN, "suites": ["quickstart"], "test_limit": 20, **grid}
    return StudySpec.parse({"name": "s", "question": "?", "grid": whole}, "study")


def work(root: Path, **grid: object) -> RunJob:
    spec = study(**grid)
    return make_jobs(expand_study(spec, "smoke"), root)[0]


@pytest.mark.parametrize("name", [e.name for e in ATTACKS if "needs_sources" not in e.tags])
def test_every_attack_says_its_passes(name: str) -> None:
    norm = ATTACKS.get(name).norms[0]
    found = max_passes(name, {}, Threat(norm, 0.1), 10)
    assert found.forward >= 1
    assert 0 <= found.backward <= found.forward


def test_passes_of_known_attacks() -> None:
    assert max_passes("clean", {}, None, 10) == PassEstimate(1)
    assert max_passes("pgd", {"steps": 7, "restarts": 3}, LINF, 10) == PassEstimate(24, 21)
    assert max_passes("square", {"queries": 50}, LINF, 10).backward == 0
    few, many = (max_passes("autoattack", {}, LINF, classes).forward for classes in (3, 10))
    assert few < many


def test_no_attack_takes_more_than_was_said() -> None:
    """A network that nothing breaks: every image takes all passes."""
    data = load_dataset("digits", "test", limit=100)
    suite = ["clean", "pgd:Linf:1e-6", "apgd-ce:L2:1e-6"]
    found = evaluate(create_model("vit_tiny", num_classes=10), data, suite)
    for record in list(found.records.values())[1:]:
        attack, threat = record.metadata["attack"], Threat.parse(record.metadata["threat"])
        said = max_passes(attack, record.metadata["args"], threat, 10)
        right = found.records["clean"].correct.mean()
        assert right > 0
        assert 0.8 * right * said.forward <= record.metadata["forward_passes"] <= said.forward + 2
        assert record.metadata["backward_passes"] <= said.backward + 1


def test_training_is_epochs_times_images_times_steps(tmp_path: Path) -> None:
    changes = ["epochs=3", "objective.args.steps=5", "validation.limit=10", "validation.every=2"]
    job = work(tmp_path, base={**RUN, "overrides": changes})
    task = tasks_of_job(job)[0]
    steps = job.spec.recipe.validation.attack.args["steps"]
    assert task.weight_backward_passes == 3 * 100
    assert task.backward_passes == 3 * 100 * 5 + 2 * 10 * steps
    assert task.forward_passes == 3 * 100 * 6 + 2 * 10 * (steps + 1)
    assert task.macs(2.0) == 2 * (
        task.forward_passes + task.backward_passes + 2 * task.weight_backward_passes
    )


def test_what_is_finished_corrects_the_estimate(tmp_path: Path) -> None:
    job = work(tmp_path)
    tasks = tuple(tasks_of_job(job))
    macs = macs_of(job.spec)
    took = {
        tasks[0].file: TaskUsage(50.0),
        tasks[2].file: TaskUsage(8.0, forward=3.0, backward=1.0),
    }
    pace = fit_speed_model([RunStatus(job, tasks, tasks, took)])
    assert pace.estimate_seconds(job, tasks[0]) == pytest.approx(50)
    assert pace.estimate_seconds(job, tasks[2]) == pytest.approx(8)
    assert pace.expected_task(job, tasks[2]).forward_passes == 20 * 3
    guessed = pace.expected_task(job, tasks[3])  # of this attack nothing is known
    assert 0 < guessed.forward_passes < tasks[3].forward_passes  # but some images break
    other = work(tmp_path, base={**RUN, "model": "resnet_tiny"})
    rate = 50 / tasks[0].macs(macs)
    expected = rate * tasks_of_job(other)[0].macs(macs_of(other.spec))
    assert pace.estimate_seconds(other, tasks_of_job(other)[0]) == pytest.approx(expected)


def test_an_analysis_with_other_arguments_is_not_done(tmp_path: Path) -> None:
    job = work(tmp_path, analyses=[{"sparsity": {"bins": 7}}])
    (task,) = (task for task in tasks_of_job(job) if task.kind == "analysis")
    assert task.identity["args"] == {"threshold": 0.01, "bins": 7}
    for bins, is_missing in ((8, True), (7, False)):
        write_record_json(task.file, {"args": {"threshold": 0.01, "bins": bins}})
        assert (task in read_status(job).missing) == is_missing


def test_nothing_known_is_said(tmp_path: Path) -> None:
    job = work(tmp_path)
    assert SpeedModel().estimate_seconds(job, tasks_of_job(job)[0]) is None
    assert read_status(job).state == "new"


def test_a_named_device_is_an_estimate(tmp_path: Path) -> None:
    slow, fast = (
        plan_study(expand_study(study(), "smoke"), tmp_path, device_name=d)
        for d in ("v100", "h100")
    )
    assert slow.flops == fast.flops > 0
    assert slow.hours
    assert fast.hours
    assert slow.hours / fast.hours == pytest.approx(67 / 15.7)
    assert "rough" in slow.estimate_basis
    assert all(0 < d.efficiency < 1 for d in DEVICES.values())
    with pytest.raises(UserError, match="a100"):
        get_device("a1000")


def test_the_quickstart_is_timed_once(tmp_path: Path) -> None:
    spec = study()
    first = plan_study(expand_study(spec, "smoke"), tmp_path, device="cpu")
    again = plan_study(expand_study(spec, "smoke"), tmp_path, device="cpu")
    assert first == again
    assert first.hours
    assert "timed" in first.estimate_basis


def test_paper_scale_needs_no_data(tmp_path: Path) -> None:
    spec = StudySpec.parse({**load_study("quickstart").model_dump(), "name": "big"}, "study")
    base = {"dataset": "cifar10"}
    grid = {**spec.grid, "base": base}
    found = plan_study(
        expand_study(spec.model_copy(update={"grid": grid}), "paper"), tmp_path, device_name="a100"
    )
    assert found.runs_by_state["new"] == len(found.runs) == 8
    assert found.runs[0].forward_passes > dataset_facts("cifar10").num_train
    assert not (tmp_path / "runs").exists()
