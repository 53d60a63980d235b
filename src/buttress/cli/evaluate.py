"""`buttress evaluate`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.console import percent, ranged, say, say_json, showing, table
from buttress.cli.network import model_options, network
from buttress.cores import share_of_cores
from buttress.errors import RunError, UserError

if TYPE_CHECKING:
    from torch import nn

    from buttress.data import Dataset
    from buttress.evaluation.suite import SuiteSpec
    from buttress.progress import Progress
    from buttress.records.corruption import Corruptions
    from buttress.records.evaluation import Evaluation
    from buttress.records.run import Run


SAID = ("model", "model_args", "pretrained", "mean", "std")  # what options say of the model


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    what: str
    suite: str
    data: str | None
    split: str
    limit: int | None
    image_size: int | None
    seed: int
    batch_size: int
    out: Path | None
    device: str
    shard: str | None
    workers: int
    worst_case_only: bool
    until_width: float | None
    compile: bool
    per_class: bool
    as_json: bool
    said: dict[str, Any]  # of the model

    @property
    def entries(self) -> str | list[str]:
        """A suite's name or file, or the entries of a list."""
        return self.suite.split(",") if "," in self.suite or ":" in self.suite else self.suite

    def folder(self, out: Path | None) -> Path | None:
        """Where the records of these settings go."""
        name = "custom" if isinstance(self.entries, list) else Path(self.suite).stem
        name += "-worst-case" if self.worst_case_only else ""
        name += f"-until-{self.until_width:g}" if self.until_width is not None else ""
        name += "" if self.limit is None else f"-{self.limit}"
        return None if out is None else out / name


@click.command("evaluate")
@click.argument("what")
@click.option("--suite", default="quickstart", show_default=True,
              help="A suite, a YAML file, or entries like clean,pgd-linf,pgd:L2:0.5,"
              "corruption:fog:3.")  # fmt: skip
@model_options
@click.option("--data", help="A data set; the run's own if WHAT is a run.")
@click.option("--split", default="test", show_default=True)
@click.option("--limit", type=int, help="The first images only.")
@click.option("--image-size", type=int, help="Height and width of the images.")
@click.option("--seed", default=0, show_default=True)
@click.option("--batch-size", default=256, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where records go; the run by default."
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--shard", metavar="I/N", help="Every N-th image only; the last shard to end merges.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True,
              help="Processes that share the images.")  # fmt: skip
@click.option("--worst-case-only", is_flag=True, help="Do not attack an image again once broken.")
@click.option("--until-width", type=float, metavar="SHARE",
              help="Stop when the worst case's 95% interval is narrower, e.g. 0.05.")  # fmt: skip
@click.option("--compile", is_flag=True, help="Try torch.compile too; it takes a minute first.")
@click.option("--per-class", is_flag=True, help="Show the accuracy of each class too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**given: Any) -> None:
    """Attack WHAT: a run, a checkpoint with --model, file.py:function, hf:OWNER/NAME ...

    `buttress list sources` shows every way to name a model. Finished attacks are kept and not done
    again.
    """
    from buttress.evaluation import load_suite
    from buttress.records.evaluation import diagnosed

    said = {name: given.pop(name) for name in SAID}
    asked = Asked(**given, said=said)
    run = run_of(asked.what, said["model"])
    images = images_of(run, asked.data, asked.split, asked.limit, asked.image_size)
    out = run.path / "eval" if run is not None and asked.out is None else asked.out
    model = network(asked.what, said, images, asked.device)
    spec = load_suite(asked.entries)
    if asked.worst_case_only:
        spec = spec.model_copy(update={"mode": "worst_case"})
    with showing() as progress:
        found = _evaluated(asked, model, images, spec, asked.folder(out), progress)
    if run is not None and asked.out is None:
        run.mend((run.path / "eval").glob("*/*.parquet"))
    if run is not None:
        found = diagnosed(found, run.analysis_file("doctor"))
    if asked.as_json:
        say_json(_as_dict(found, images))
    else:
        _show(found, images, asked.per_class)


def run_of(what: str, model: str | None) -> Run | None:
    """The run that WHAT names, if it names one."""
    from buttress.records.run import Run

    run = Run(what)
    return run if run.exists and model is None else None


def images_of(
    run: Run | None, data: str | None, split: str, limit: int | None, image_size: int | None
) -> Dataset:
    """The images that were asked for; a run's own data if none were."""
    from buttress.data import load_dataset

    if data is None and run is None:
        raise UserError("say which images to attack with --data, e.g. --data cifar10")
    name = data or (run.spec.dataset if run else "")
    with showing() as progress:
        return load_dataset(name, split, limit=limit, image_size=image_size, progress=progress)


def _evaluated(
    asked: Asked, model: nn.Module, images: Dataset, spec: SuiteSpec, folder: Path | None,
    progress: Progress,
) -> Evaluation:  # fmt: skip
    """All images in one process, until a width, in workers, or one shard of them."""
    from buttress.evaluation import evaluate, evaluate_until
    from buttress.evaluation.shards import Shard, merge_shards

    part = None if asked.shard is None else Shard.parse(asked.shard)
    is_shared = part is not None or asked.workers > 1
    if is_shared and folder is None:
        raise UserError("shards and workers meet in files: say where with --out")
    if is_shared and asked.until_width is not None:
        raise UserError("--until-width looks at all images together: leave out shards and workers")
    count = asked.workers if part is None else part.count
    if count > len(images):
        raise UserError(f"{len(images)} images cannot be shared by {count} workers or shards")
    how: dict[str, Any] = {"batch_size": asked.batch_size, "seed": asked.seed,
                           "compile": asked.compile, "progress": progress}  # fmt: skip
    if asked.until_width is not None:
        return evaluate_until(model, images, spec, asked.until_width, out=folder, **how)
    if part is None and not is_shared:
        return evaluate(model, images, spec, out=folder, **how)
    assert folder is not None
    if part is None:
        _spread(asked)
        merged = merge_shards(folder, asked.workers, images)
        assert merged is not None
        return merged
    own = evaluate(model, part.of(images), spec, out=part.folder(folder), **how)
    return merge_shards(folder, part.count, images) or own


FLAGS = ("worst_case_only", "compile", "pretrained")
OWN = (
    "what",
    "said",
    "workers",
    "shard",
    "as_json",
    "per_class",
    *FLAGS,
)  # not passed on


def _spread(asked: Asked) -> None:
    """The same command in several processes, one shard each, with their share of the cores."""
    workers, given = asked.workers, {**vars(asked), **asked.said}
    args = [asked.what, *(f"--{f.replace('_', '-')}" for f in FLAGS if given[f])]
    for name, value in given.items():
        if name in OWN or value is None:
            continue
        word = "--model-arg" if name == "model_args" else f"--{name.replace('_', '-')}"
        for part in value if isinstance(value, tuple) else (value,):
            args += [word, str(part)]
    threads = str(share_of_cores(workers))
    env = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, "-m", "buttress.cli.main", "evaluate", *args, "--shard"]
    running = [
        subprocess.Popen([*command, f"{k + 1}/{workers}"], env=env, stdout=subprocess.DEVNULL)
        for k in range(workers)
    ]
    try:
        failed = [k + 1 for k, process in enumerate(running) if process.wait()]
    finally:
        for process in running:
            process.terminate()
    if failed:
        raise RunError(f"worker {failed[0]} of {workers} failed; what it said is above")


def _as_dict(found: Evaluation, images: Dataset) -> dict[str, Any]:
    content = found.to_dict()
    if (corrupted := found.corruptions) is not None:
        content["corruptions"]["mce_relative_to_alexnet"] = _relative(corrupted, images)
    return content


def _relative(corrupted: Corruptions, images: Dataset) -> float | None:
    """The mCE over that of AlexNet, where that is defined: all corruptions, on ImageNet."""
    from buttress.evaluation import mean_corruption_error

    errors = {n: [1 - a for a in row.values()] for n, row in corrupted.accuracies.items()}
    try:
        return mean_corruption_error(errors, images.name).normalised
    except UserError:  # some corruptions or severities only
        return None


def _show(found: Evaluation, images: Dataset, per_class: bool) -> None:
    """Tables for a person; corruptions are one line."""
    rows = [_row(n, r.accuracy, found.interval(n)) for n, r in found.attacks.items()]
    corrupted = found.corruptions
    if corrupted is not None:
        rows.append(_row("corruptions", corrupted.accuracy, corrupted.interval))
    rows.append(_row("worst case", found.worst_case, found.interval()))
    header = ["attack", "accuracy", "95% interval"]
    if not found.trustworthy:
        header, rows = [*header, "trust"], [[*row, "untrustworthy"] for row in rows]
    say(table(header, rows))
    say(f"{len(found)} images of {images.name} {images.split}")
    if corrupted is not None:
        copies = sum(len(row) for row in corrupted.accuracies.values())
        counted = "counted" if corrupted.counts else "not counted"
        relative = _relative(corrupted, images)
        over = "" if relative is None else f" ({100 * relative:.2f}% relative to AlexNet)"
        say(f"corruptions: mean over {copies} corrupted copies of each image, mCE "
            f"{100 * corrupted.mce:.2f}%{over}, {counted} in the worst case")  # fmt: skip
    if per_class:
        _show_classes(found)
    for record in found.records.values():
        if parts := record.meta.get("parts"):
            say(f"{record.name}: {', '.join(_part(*part) for part in parts)}")
    for warning in found.warnings:
        say(f"warning: {warning}")
    for one in found.findings:
        if one.severity == "note":
            say(f"note: {one.text}")


def _show_classes(found: Evaluation) -> None:
    """Accuracy of each class, the weakest in the worst case first."""
    classes, spans = found.per_class(), found.class_intervals()
    order = sorted(classes, key=lambda name: (classes[name]["worst_case"], name))
    columns = [c for c in next(iter(classes.values())) if c != "images"]
    rows = [
        [
            name,
            f"{classes[name]['images']:g}",
            *(ranged(classes[name][c], spans[name][c]) for c in columns),
        ]
        for name in order
    ]
    say("")
    say(table(["class", "images", *(c.replace("_", " ") for c in columns)], rows))
    say("")


def _part(name: str, images: int, spared: int) -> str:
    return f"{name} on {images} images" + (f" ({spared} spared)" if spared else "")


def _row(name: str, share: float, interval: tuple[float, float]) -> list[str]:
    return [name, f"{100 * share:.2f}%", f"{percent(interval[0])} - {percent(interval[1])}"]
