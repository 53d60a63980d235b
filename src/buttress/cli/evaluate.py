"""`buttress evaluate`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.checks import check_suite, check_threat_options
from buttress.cli.console import (
    format_estimate,
    format_percent,
    format_table,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.options import (
    DEVICE_OPTION,
    IMAGE_SIZE_OPTION,
    JSON_OPTION,
    MODEL_ARGUMENT,
    checked,
    image_options,
    load_model_argument,
    model_options,
    parse_eot_samples,
    seed_and_batch_options,
    threat_options,
)
from buttress.errors import RunError, UserError
from buttress.results.core import WORST_CASE
from buttress.results.surrogate_text import check_surrogate
from buttress.system.cpu import threads_per_worker
from buttress.system.files import safe_file_name

if TYPE_CHECKING:
    from torch import nn

    from buttress.data import Dataset
    from buttress.engine.randomness import EotSamples
    from buttress.results.core import AccuracyEstimate
    from buttress.results.corruption_summary import CorruptionSummary
    from buttress.results.evaluation import Evaluation
    from buttress.results.run import Run
    from buttress.results.suite_spec import SuiteSpec


@click.command("evaluate")
@MODEL_ARGUMENT
@click.option("--suite", callback=checked(check_suite),
              help="Suite name, YAML file, one attack, or entries such as clean,pgd-linf,"
              "pgd:L2:0.5,corruption:fog:3 (default: the fast ensemble).")  # fmt: skip
@threat_options
@model_options
@image_options
@click.option("--limit", type=int, help="Use only the first N images.")
@IMAGE_SIZE_OPTION
@seed_and_batch_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the records (default: the run)."
)
@DEVICE_OPTION
@click.option("--shard", metavar="I/N",
              help="Evaluate shard I of N; the last to finish merges the records.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True,
              help="Number of processes that the images are split among.")  # fmt: skip
@click.option("--worst-case-only", is_flag=True, help="Skip an image once it is fooled.")
@click.option("--until-width", type=float, metavar="SHARE",
              help="Stop when the 95% interval of the worst-case robust accuracy is narrower, "
              "e.g. 0.05.")  # fmt: skip
@click.option("--surrogate", callback=checked(check_surrogate), metavar="STAND_IN",
              help="Differentiable stand-in for preprocessing in the backward pass (BPDA): "
              "identity, FILE.py:FUNCTION, or SUBMODULE=identity.")  # fmt: skip
@click.option("--draws", type=click.IntRange(1, 1000), metavar="K",
              help="Score a randomized model over K draws (default: 20 if it is randomized)."
              )  # fmt: skip
@click.option("--eot-samples", metavar="K", callback=parse_eot_samples,
              help="Passes of a randomized model that attacks average at each point (EOT); auto "
              "chooses from its noise.")  # fmt: skip
@click.option("--compile", is_flag=True, help="Also try torch.compile (compiles for a minute).")
@click.option("--per-class", is_flag=True, help="Also print the accuracy of each class.")
@JSON_OPTION
def command(
    model_source: str, suite: str | None, threat: str | None, eps: str | None, norm: str | None,
    dataset: str | None, split: str, limit: int | None,
    image_size: int | None, seed: int, batch_size: int, out: Path | None, device: str,
    shard: str | None, workers: int, worst_case_only: bool, until_width: float | None,
    surrogate: str | None, draws: int | None, eot_samples: EotSamples | None,
    compile: bool, per_class: bool, as_json: bool, **model_options: Any,
) -> None:  # fmt: skip
    """Evaluate clean and robust accuracy of MODEL: a run, file.py:function, hf:OWNER/NAME ...

    MODEL may also be a checkpoint with --model; `buttress list sources` shows every way to name
    one. Finished attacks are cached and skipped.
    """
    one_threat = check_threat_options(threat, eps, norm, suite)
    run = find_run(model_source, model_options["model"])
    check_data_is_named(dataset, run)

    from buttress.results.run import EVAL_FOLDER
    from buttress.results.run_results import RunResults

    images = load_images(run, dataset, split, limit, image_size)
    model = load_model_argument(model_source, model_options, images, device)
    spec = _choose_suite(suite, one_threat, run, model)
    folder = out if run is None or out is not None else run.path / EVAL_FOLDER
    if folder is not None:
        name = safe_file_name(spec.name)
        name += "-worst-case" if worst_case_only else ""
        name += "" if surrogate is None else f"-surrogate-{safe_file_name(surrogate)}"
        name += "" if until_width is None else f"-until-{until_width:g}"
        folder /= name + ("" if limit is None else f"-{limit}")
    if worst_case_only:
        spec = spec.model_copy(update={"mode": "worst_case"})
    with show_progress() as progress:
        evaluation = _run_evaluation(
            model, images, spec, folder, shard=shard, workers=workers, until_width=until_width,
            batch_size=batch_size, seed=seed, compile=compile, draws=draws, surrogate=surrogate,
            eot_samples=eot_samples, progress=progress,
        )  # fmt: skip
    if run is not None and out is None:
        run.mend((run.path / EVAL_FOLDER).glob("*/*.parquet"))
    if run is not None:
        evaluation = evaluation.with_diagnosis(RunResults(run).diagnosis)
    if as_json:
        print_json(_as_dict(evaluation, images))
    else:
        _print_evaluation(evaluation, images, per_class)


def _choose_suite(
    suite: str | None, one_threat: str | None, run: Run | None, model: nn.Module
) -> SuiteSpec:
    """The suite that was named, else the default one, which is said on stderr."""
    from buttress.evaluation.suite import choose_suite, load_suite

    if suite is not None:
        spec = load_suite(suite)
        if suite.endswith((".yaml", ".yml")):
            spec = spec.model_copy(update={"name": Path(suite).stem})
        return choose_suite(spec, one_threat, model)
    trained = run.spec.recipe.threat if run else None
    spec = choose_suite(None, one_threat or (trained or "").partition(":")[0] or None, model)
    click.echo(
        f"no --suite: using {spec.name} (clean, {spec.entry_names}); robustbench-linf is standard "
        "AutoAttack, fast has three norms, `buttress list suites` shows all", err=True,
    )  # fmt: skip
    return spec


def find_run(model_source: str, model: str | None) -> Run | None:
    """The run that MODEL names, if it names one."""
    from buttress.results.run import Run

    run = Run(model_source)
    return run if run.exists and model is None else None


def check_data_is_named(data: str | None, run: Run | None) -> None:
    if data is None and run is None:
        raise UserError("--data is required unless MODEL is a run, e.g. --data cifar10")


def load_images(
    run: Run | None, data: str | None, split: str, limit: int | None, image_size: int | None
) -> Dataset:
    """Load the images of ``--data``, or of the dataset of the run at the size of the run."""
    from buttress.data import load_dataset

    check_data_is_named(data, run)
    name = data or (run.spec.dataset if run else "")
    if image_size is None and run is not None and name == run.spec.dataset:
        image_size = run.spec.image_size
    with show_progress() as progress:
        return load_dataset(name, split, limit=limit, image_size=image_size, progress=progress)


def _run_evaluation(
    model: nn.Module, images: Dataset, spec: SuiteSpec, folder: Path | None, *, shard: str | None,
    workers: int, until_width: float | None, **arguments: Any,
) -> Evaluation:  # fmt: skip
    """Evaluate all images in one process, until a width, in workers, or one shard of them."""
    from buttress.evaluation import evaluate, evaluate_until
    from buttress.evaluation.subsets import ImageShard, evaluate_shard, merge_shards

    if shard is None and workers == 1:
        if until_width is None:
            return evaluate(model, images, spec, out=folder, **arguments)
        return evaluate_until(model, images, spec, until_width, out=folder, **arguments)
    image_shard = None if shard is None else ImageShard.parse(shard)
    if folder is None:
        raise UserError("--shard and --workers need --out, the folder for the records")
    if until_width is not None:
        raise UserError("--until-width cannot be combined with --shard or --workers")
    count = workers if image_shard is None else image_shard.count
    if count > len(images):
        raise UserError(
            f"--workers and --shard split the images: at most {len(images)} parts, but got {count}"
        )
    if image_shard is None:
        _run_shard_processes(workers)
        merged = merge_shards(folder, workers, images, model)
        assert merged is not None
        return merged
    evaluation = evaluate_shard(image_shard, model, images, spec, out=folder, **arguments)
    return merge_shards(folder, count, images, model) or evaluation


def _run_shard_processes(workers: int) -> None:
    """Run this command in several processes, one shard and a share of the cores each."""
    name, *args = click.get_current_context().obj  # what was typed
    threads = str(threads_per_worker(workers))
    env = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, "-m", "buttress.cli.main", name, "--shard"]
    processes = [
        subprocess.Popen([*command, f"{k}/{workers}", *args], env=env, stdout=subprocess.DEVNULL)
        for k in range(1, workers + 1)
    ]
    try:
        failed = [k for k, process in enumerate(processes, start=1) if process.wait()]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()  # they release their locks
    if failed:
        raise RunError(f"worker {failed[0]} of {workers} failed; see its error above")


def _as_dict(evaluation: Evaluation, images: Dataset) -> dict[str, Any]:
    content = evaluation.to_dict()
    if (corruptions := evaluation.corruptions) is not None:
        relative_mce = _mce_relative_to_alexnet(corruptions, images)
        content["corruptions"]["mce_relative_to_alexnet"] = relative_mce
    return content


def _mce_relative_to_alexnet(corrupted: CorruptionSummary, images: Dataset) -> float | None:
    """Compute mCE relative to AlexNet; None unless on all corruptions of ImageNet."""
    from buttress.evaluation import mean_corruption_error

    errors = {n: [1 - a for a in row.values()] for n, row in corrupted.accuracies.items()}
    try:
        return mean_corruption_error(errors, images.name).relative_mce
    except UserError:  # some corruptions or severities only
        return None


def _print_evaluation(evaluation: Evaluation, images: Dataset, per_class: bool) -> None:
    """Print tables of accuracies; all corruptions in one row."""
    rows = [_accuracy_row(n, evaluation.estimate(n)) for n in evaluation.attack_records]
    corruptions = evaluation.corruptions
    if corruptions is not None:
        rows.append(_accuracy_row("corruptions", corruptions.estimate))
    rows.append(_accuracy_row("worst-case robust accuracy", evaluation.estimate()))
    header = ["attack", "accuracy", "95% interval"]
    if evaluation.draws > 1:
        header[1:] = [f"mean over {evaluation.draws} draws", "95% interval", "every draw"]
        names = [*evaluation.attack_records, *([] if corruptions is None else [""]), WORST_CASE]
        rows = [
            [*row, f"{100 * evaluation.every_draw(n).accuracy:.2f}%" if n else ""]
            for row, n in zip(rows, names, strict=True)
        ]
    if not evaluation.is_trustworthy:
        header, rows = [*header, "trust"], [[*row, "not trustworthy"] for row in rows]
    print_line(format_table(header, rows))
    print_line(f"{len(evaluation)} images of {images.name} {images.split}")
    if corruptions is not None:
        copies = sum(len(row) for row in corruptions.accuracies.values())
        counted_text = "included in" if corruptions.in_worst_case else "excluded from"
        relative = _mce_relative_to_alexnet(corruptions, images)
        relative_text = "" if relative is None else f" ({100 * relative:.2f}% relative to AlexNet)"
        print_line(f"corruptions: mean over {copies} corrupted copies of each image, mCE "
                   f"{100 * corruptions.mce:.2f}%{relative_text}, {counted_text} the "
                   "worst-case robust accuracy")  # fmt: skip
    if evaluation.uar:
        rows = [[k, f"{r.uar:.3f}", " - ".join(f"{v:.3f}" for v in r.interval)]
                for k, r in evaluation.uar.items()]  # fmt: skip
        print_line(format_table(["threat model", "UAR", "95% interval"], rows))
    if per_class:
        _print_per_class(evaluation)
    for record in evaluation.records.values():
        if stand_in := (record.metadata.get("args") or {}).get("surrogate"):
            print_line(f"{record.name}: backward passes through the surrogate {stand_in}")
        if stages := record.metadata.get("stages"):
            print_line(f"{record.name}: {', '.join(_stage_text(*stage) for stage in stages)}")
    for warning in evaluation.warnings:
        print_line(f"warning: {warning}")
    for finding in evaluation.findings:
        if finding.severity == "note":
            print_line(f"note: {finding.text}")


def _print_per_class(evaluation: Evaluation) -> None:
    """Print the accuracy of each class, lowest worst-case robust accuracy first."""
    classes = evaluation.per_class()
    order = sorted(classes, key=lambda name: (classes[name].accuracy["worst_case"].accuracy, name))
    columns = list(next(iter(classes.values())).accuracy)
    rows = [
        [name, str(classes[name].images), *map(format_estimate, classes[name].accuracy.values())]
        for name in order
    ]
    print_line("")
    print_line(format_table(["class", "images", *(c.replace("_", " ") for c in columns)], rows))
    print_line("")


def _stage_text(name: str, images: int, skipped: int) -> str:
    return f"{name} on {images} images" + (f" ({skipped} skipped)" if skipped else "")


def _accuracy_row(name: str, estimate: AccuracyEstimate) -> list[str]:
    interval = " - ".join(map(format_percent, estimate.interval))
    return [name, f"{100 * estimate.accuracy:.2f}%", interval]
