"""What a study will cost: passes that are right, hours that follow from them, no data needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from buttress.data import dataset_facts, load_dataset
from buttress.errors import UserError
from buttress.evaluation import evaluate
from buttress.evaluation.run_entry import entry_passes
from buttress.evaluation.suite import SuiteEntry
from buttress.models import create_model
from buttress.models.cost import PassCount
from buttress.results.core import write_record_json
from buttress.results.run_spec import RunSpec
from buttress.studies import StudySpec, calibration, load_study, make_jobs, plan_study
from buttress.studies.calibration import FamilySpeed
from buttress.studies.grid import expand_study
from buttress.studies.jobs import RunJob, RunStatus, TaskUsage, read_status, tasks_of_job
from buttress.studies.plan import build_plan
from buttress.studies.speed import DEVICES, SpeedModel, fit_speed_model, get_device
from buttress.threats.core import Threat
from buttress.training.cost import (
    images_per_epoch,
    run_model_cost,
    training_memory,
    training_passes,
    validation_passes,
)
from buttress.training.recipe import load_recipe
from buttress.training.train import resolve_run_spec

RUN = {"model": "vit_tiny", "dataset": "digits", "recipe": "quickstart-at", "train_limit": 100}


def study(**grid: object) -> StudySpec:
    whole = {"base": RUN, "suites": ["quickstart"], "test_limit": 20, **grid}
    return StudySpec.parse({"name": "s", "question": "?", "grid": whole}, "study")


def work(root: Path, **grid: object) -> RunJob:
    spec = study(**grid)
    return make_jobs(expand_study(spec, "smoke"), root)[0]


def test_no_record_counts_more_passes_than_planned() -> None:
    """A network that nothing fools: every image takes all passes."""
    data = load_dataset("digits", "test", limit=100)
    suite = ["clean", "pgd:Linf:1e-6", "apgd-ce:L2:1e-6"]
    result = evaluate(create_model("vit_tiny", num_classes=10), data, suite)
    right = result.records["clean"].correct.mean()
    assert right > 0
    for record in list(result.records.values())[1:]:
        threat, meta = Threat.parse(record.metadata["threat"]), record.metadata
        planned = entry_passes(SuiteEntry("", meta["attack"], threat, meta["args"]), 10)
        assert 0.8 * right * planned.forward <= meta["forward_passes"] <= planned.forward
        assert meta["backward_passes"] <= planned.backward
    assert entry_passes(SuiteEntry("", "clean", None, {}), 10) == PassCount(1)


def test_an_attack_that_suites_share_is_planned_once(tmp_path: Path) -> None:
    suites = ["generalization-mini", "fast"]
    both = tasks_of_job(work(tmp_path, suites=suites))
    assert [t.label for t in both if t.is_repeated] == ["fast: fast-linf"]
    alone = tasks_of_job(work(tmp_path, suites=["fast"]))
    assert not any(t.is_repeated for t in alone)
    (task,) = [t for t in both if t.is_repeated]
    job, speed = work(tmp_path, suites=suites), SpeedModel()
    assert speed.expected_passes(job, task) == PassCount()
    (first,) = [t for t in both if t.label == "generalization-mini: fast-linf"]
    assert speed.expected_passes(job, first).forward > 0


def recipe_job(root: Path, *overrides: str, **base: object) -> RunJob:
    """A run of 100 images in batches of 32, so that 96 are trained on in each epoch."""
    return work(root, base={**RUN, "overrides": ["epochs=3", *overrides], **base})


def passes_of(job: RunJob) -> PassCount:
    return training_passes(job.spec, dataset_facts(job.spec.dataset))


def test_training_is_epochs_times_images_times_steps(tmp_path: Path) -> None:
    job = recipe_job(
        tmp_path, "objective.args.steps=5", "validation.limit=10", "validation.every=2",
        "eps_warmup_epochs=0", "eps_zero_epochs=0",
    )  # fmt: skip
    steps = job.spec.recipe.validation.attack.args["steps"]
    passes = tasks_of_job(job)[0].passes
    # A validated image: the prediction, that of the attack, and its points.
    validation = PassCount(2 * 10 * (2 + steps + 1), 2 * 10 * steps)
    assert passes == PassCount(3 * 96 * 6, 3 * 96 * 5, 3 * 96) + validation
    assert passes.macs(2.0) == 2 * (passes.forward + passes.backward + 2 * passes.weight_backward)


def test_validation_is_on_the_images_of_its_split(tmp_path: Path) -> None:
    facts = dataset_facts("digits")
    assert facts.num_val == len(load_dataset("digits", "val")) != facts.num_test
    for select_on, images in (("val", facts.num_val), ("test", facts.num_test)):
        spec = recipe_job(tmp_path, f"select_on={select_on}").spec
        steps = spec.recipe.validation.attack.args["steps"]
        assert validation_passes(spec, facts).backward == images * steps


def test_epochs_without_an_attack_and_with_awp(tmp_path: Path) -> None:
    plain = passes_of(recipe_job(tmp_path, "eps_warmup_epochs=1", "eps_zero_epochs=0"))
    late = passes_of(recipe_job(tmp_path, "eps_warmup_epochs=1", "eps_zero_epochs=1"))
    steps = recipe_job(tmp_path).spec.recipe.objective.args["steps"]
    assert plain.backward - late.backward == 96 * steps
    assert plain.weight_backward == late.weight_backward == 3 * 96
    awp = recipe_job(tmp_path, "eps_warmup_epochs=1", "awp.gamma=0.01", "awp.from_epoch=2")
    assert passes_of(awp).weight_backward == (3 + 1) * 96


def test_extra_images_are_counted() -> None:
    recipe = load_recipe("robustwrn-rst", ("extra_data.dataset=cifar10", "batch_size=100"))
    spec = resolve_run_spec("wrn_tiny", "cifar10", recipe)
    assert images_per_epoch(spec, dataset_facts("cifar10")) == 2 * 49_000


def test_memory_grows_with_batch_and_optimizer(tmp_path: Path) -> None:
    def memory(*overrides: str) -> float:
        return training_memory(recipe_job(tmp_path, *overrides).spec)

    cost = run_model_cost(recipe_job(tmp_path).spec)
    assert memory("batch_size=64") - memory("batch_size=32") == 4 * 32 * cost.activations
    assert memory("accumulation_steps=2") < memory()
    assert memory("precision=bf16-mixed") < memory()
    weights = memory("optimizer.name=adamw") - memory(
        "optimizer.name=sgd", "optimizer.momentum=0.9"
    )
    assert weights == 4 * cost.parameters


def test_what_is_finished_corrects_the_estimate(tmp_path: Path) -> None:
    job = work(tmp_path)
    tasks = tuple(tasks_of_job(job))
    macs = run_model_cost(job.spec).macs
    took = {
        tasks[0].file: TaskUsage(50.0),
        tasks[2].file: TaskUsage(8.0, forward=3.0, backward=1.0),
    }
    pace = fit_speed_model([RunStatus(job, tasks, tasks, took)])
    assert pace.estimate_seconds(job, tasks[0]) == pytest.approx(50)
    assert pace.estimate_seconds(job, tasks[2]) == pytest.approx(8)
    assert pace.expected_passes(job, tasks[2]).forward == 20 * 3
    guessed = pace.expected_passes(job, tasks[3])  # of this attack nothing is known
    assert 0 < guessed.forward < tasks[3].passes.forward  # but some images break
    other = work(tmp_path, base={**RUN, "model": "resnet_tiny"})
    rate = 50 / tasks[0].passes.macs(macs)
    expected = rate * tasks_of_job(other)[0].passes.macs(run_model_cost(other.spec).macs)
    assert pace.estimate_seconds(other, tasks_of_job(other)[0]) == pytest.approx(expected)


def test_an_analysis_with_other_arguments_is_not_done(tmp_path: Path) -> None:
    job = work(tmp_path, analyses=[{"sparsity": {"bins": 7}}])
    (task,) = (task for task in tasks_of_job(job) if task.kind == "analysis")
    args = {"threshold": 0.01, "largest": "max", "bins": 7}
    assert task.identity["args"] == args
    for bins, is_missing in ((8, True), (7, False)):
        write_record_json(task.file, {"args": {**args, "bins": bins}})
        assert (task in read_status(job).missing) == is_missing


def test_analyses_are_part_of_the_plan(tmp_path: Path) -> None:
    plain, more = (
        plan_study(expand_study(study(analyses=a), "smoke"), tmp_path, device_name="a100")
        for a in ([], [{"stability": {"limit": 5}}, "sparsity"])
    )
    job = work(tmp_path, analyses=[{"stability": {"limit": 5}}])
    passes = tasks_of_job(job)[-1].passes
    assert more.forward_passes - plain.forward_passes == pytest.approx(passes.forward)
    assert passes.backward > 0
    with pytest.raises(UserError, match="group_analyses"):
        expand_study(study(analyses=["transferability"]), "smoke")


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


def test_measured_memory_is_the_largest_of_finished_tasks(tmp_path: Path) -> None:
    expanded = expand_study(study(), "smoke")
    job = make_jobs(expanded, tmp_path)[0]
    tasks = tuple(tasks_of_job(job))
    peaks = (300.0, 512.0)
    usage = {
        t.file: TaskUsage(1.0, peak_memory_mb=mb) for t, mb in zip(tasks[:2], peaks, strict=True)
    }
    finished = build_plan(expanded, [RunStatus(job, tasks, tasks, usage)], SpeedModel())
    assert finished.measured_memory_bytes == 512 * 2**20
    new = build_plan(expanded, [RunStatus(job, tasks, tasks)], SpeedModel())
    assert new.measured_memory_bytes == 0


def test_memory_beyond_a_device_is_a_warning(tmp_path: Path) -> None:
    small = plan_study(expand_study(study(), "smoke"), tmp_path, device_name="rtx2080ti")
    assert small.memory_bytes == max(run.memory_bytes for run in small.runs) > 0
    assert not small.warnings
    changes = {**RUN, "overrides": ["batch_size=1000000"]}
    large = plan_study(expand_study(study(base=changes), "smoke"), tmp_path, device_name="v100")
    assert large.memory_bytes > 32e9
    assert "32 GB of v100" in large.warnings[0]
    assert "accumulation_steps" in large.warnings[0]


def test_one_model_of_a_family_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def time_model(spec: RunSpec, num_images: int, device: str, seconds: float) -> FamilySpeed:
        timed.append(spec.model)
        return FamilySpeed(1e-12, 2e-12, 3e-12)

    monkeypatch.setattr(calibration, "time_model", time_model)
    names = [f"wrn_d{n}_1_1_w1_1_1_mini" for n in (1, 3, 5)]
    grid = expand_study(study(axes={"model": {n: {"model": n} for n in names}}), "smoke")
    plan = plan_study(grid, tmp_path, device="cpu")
    assert timed == [names[1]]
    flops = [run.flops for run in plan.runs]
    assert flops[0] < flops[1] < flops[2]
    seconds = [run.seconds or 0 for run in plan.runs]
    assert seconds[2] / seconds[0] == pytest.approx(flops[2] / flops[0], rel=0.01)


def test_a_family_too_slow_to_time_takes_the_speed_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(calibration.ASSUMED_FLOPS, "cpu", 1.0)
    grid = expand_study(study(), "smoke")
    plan = plan_study(grid, tmp_path, device="cpu")
    assert plan.hours is None
    assert plan.flops > 0
    other_speed = {"SomeOtherNetwork": [1e-12, 2e-12, 3e-12]}
    speed = SpeedModel(calibrations={k: FamilySpeed(*v) for k, v in other_speed.items()})
    job = work(tmp_path)
    task = tasks_of_job(job)[0]
    macs = run_model_cost(job.spec).macs
    expected = FamilySpeed(1e-12, 2e-12, 3e-12).seconds(task.passes, macs)
    assert speed.estimate_seconds(job, task) == expected > 0


def test_the_quickstart_is_timed_once(tmp_path: Path) -> None:
    spec = study()
    first = plan_study(expand_study(spec, "smoke"), tmp_path, device="cpu")
    again = plan_study(expand_study(spec, "smoke"), tmp_path, device="cpu")
    assert first == again
    assert first.hours
    assert "timed" in first.estimate_basis


def test_paper_scale_needs_no_data(tmp_path: Path) -> None:
    big = expand_study(load_study("quickstart"), "digits", "cifar10")
    result = plan_study(big, tmp_path, device_name="a100")
    assert result.runs_by_state["new"] == len(result.runs) == 8
    assert result.runs[0].forward_passes > dataset_facts("cifar10").num_train
    assert not (tmp_path / "runs").exists()
