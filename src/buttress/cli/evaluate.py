"""`buttress evaluate`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.console import percent, say, say_json, showing, table
from buttress.errors import RunError, UserError

if TYPE_CHECKING:
    from torch import nn

    from buttress.data import Dataset


@click.command("evaluate")
@click.argument("what")
@click.option("--suite", default="quickstart", show_default=True,
              help="A suite, a YAML file, or entries like clean,pgd-linf,pgd:L2:0.5.")  # fmt: skip
@click.option("--model", help="The architecture of a checkpoint: a name or file.py:function.")
@click.option("--data", help="A data set; the run's own if WHAT is a run.")
@click.option("--split", default="test", show_default=True)
@click.option("--limit", type=int, help="The first images only.")
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
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    what: str, suite: str, model: str | None, data: str | None, split: str, limit: int | None,
    seed: int, batch_size: int, out: Path | None, device: str,
    shard: str | None, workers: int, worst_case_only: bool, until_width: float | None,
    compile: bool, as_json: bool,
) -> None:  # fmt: skip
    """Attack WHAT: a run, a checkpoint with --model, or file.py:function.

    Finished attacks are kept and not done again.
    """
    from buttress.data import load_dataset
    from buttress.evaluation import evaluate, evaluate_until, load_suite
    from buttress.evaluation.shards import Shard, merge_shards
    from buttress.records.run import Run

    run = Run(what)
    if run.exists and model is None:
        data = data or run.spec.dataset
        out = out or run.path / "eval"
    elif data is None:
        raise UserError("say which images to attack with --data, e.g. --data cifar10")
    images = load_dataset(data, split, limit=limit)
    network = _network(what, model, images, device)
    wanted = suite.split(",") if "," in suite or ":" in suite else suite
    spec = load_suite(wanted)
    if worst_case_only:
        spec = spec.model_copy(update={"mode": "worst_case"})
    name = "custom" if isinstance(wanted, list) else Path(suite).stem
    name += "-worst-case" if worst_case_only else ""
    name += f"-until-{until_width:g}" if until_width is not None else ""
    folder = None if out is None else out / (name if limit is None else f"{name}-{limit}")
    part = None if shard is None else Shard.parse(shard)
    if (part is not None or workers > 1) and folder is None:
        raise UserError("shards and workers meet in files: say where with --out")
    if until_width is not None and (part is not None or workers > 1):
        raise UserError("--until-width looks at all images together: leave out shards and workers")
    count = workers if part is None else part.count
    if count > len(images):
        raise UserError(f"{len(images)} images cannot be shared by {count} workers or shards")
    with showing() as progress:
        if until_width is not None:
            found = evaluate_until(network, images, spec, until_width, batch_size=batch_size,
                                   seed=seed, out=folder, compile=compile,
                                   progress=progress)  # fmt: skip
        elif part is None and workers > 1:
            assert folder is not None
            _spread(click.get_current_context().params, workers)
            merged = merge_shards(folder, count, images)
            assert merged is not None
            found = merged
        else:
            here = images if part is None else part.of(images)
            where = folder if part is None or folder is None else part.folder(folder)
            found = evaluate(network, here, spec, batch_size=batch_size, seed=seed,
                             out=where, compile=compile, progress=progress)  # fmt: skip
            if part is not None and folder is not None:
                found = merge_shards(folder, count, images) or found
    if as_json:
        say_json(found.to_dict())
        return
    rows = [_row(n, found.accuracy[n], found.interval(n)) for n in found.records]
    rows.append(_row("worst case", found.worst_case, found.interval()))
    say(table(["attack", "accuracy", "95% interval"], rows))
    say(f"{len(found)} images of {images.name} {images.split}")
    for record in found.records.values():
        if parts := record.meta.get("parts"):
            say(f"{record.name}: {', '.join(_part(*part) for part in parts)}")
    for warning in found.warnings:
        say(f"warning: {warning}")


FLAGS = ("worst_case_only", "compile")


def _spread(given: dict[str, Any], workers: int) -> None:
    """The same command in several processes, one shard each, with their share of the cores."""
    own = {"what", "workers", "shard", "as_json", *FLAGS}
    args = [str(given["what"]), *(f"--{f.replace('_', '-')}" for f in FLAGS if given[f])]
    for name, value in given.items():
        if name not in own and value is not None:
            args += [f"--{name.replace('_', '-')}", str(value)]
    threads = str(max(1, (os.cpu_count() or 1) // workers))
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


def _network(what: str, model: str | None, images: Dataset, device: str) -> nn.Module:
    """The model that WHAT names: a run, a function that makes one, or weights with --model."""
    from buttress.models import create_model, load_model
    from buttress.models.core import on_device
    from buttress.models.sources import is_function

    if Path(what).is_dir() and model is None:
        return load_model(what, device=device)
    classes, (channels, size, _) = images.num_classes, images.shape
    if is_function(what) and model is None:
        made = create_model(what, num_classes=classes, image_size=size, in_channels=channels)
        return on_device(made.eval(), device)
    return load_model(what, model=model, device=device, num_classes=classes, image_size=size)


def _part(name: str, images: int, spared: int) -> str:
    return f"{name} on {images} images" + (f" ({spared} spared)" if spared else "")


def _row(name: str, share: float, interval: tuple[float, float]) -> list[str]:
    return [name, f"{100 * share:.2f}%", f"{percent(interval[0])} - {percent(interval[1])}"]
