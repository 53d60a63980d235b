"""`buttress analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.checks import check_model, check_name
from buttress.cli.console import format_table, print_json, print_line, show_progress
from buttress.cli.evaluate import load_images
from buttress.cli.options import (
    IMAGE_SIZE_OPTION,
    JSON_OPTION,
    check_each,
    checked,
    image_options,
    model_options,
    source_options,
)
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.analysis import NamedModel
    from buttress.data import Dataset
    from buttress.models.loading.core import ModelRequest
    from buttress.results.run import Run


@click.command("analyze")
@click.argument("name", callback=checked(lambda name: check_name("analysis", "analyses", name)))
@click.argument("sources", nargs=-1, callback=check_each(check_model))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Argument of the analysis; repeatable.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), help="Write a figure (PNG, SVG or PDF).")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N test images.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("analysis"), show_default=True,
              help="Output folder for analyses of several runs, other models or none.")  # fmt: skip
@model_options
@image_options
@IMAGE_SIZE_OPTION
@JSON_OPTION
def command(
    name: str, sources: tuple[str, ...], overrides: tuple[str, ...], plot: Path | None,
    limit: int | None, out: Path, dataset: str | None, split: str, image_size: int | None,
    as_json: bool, **model_values: Any,
) -> None:  # fmt: skip
    """Run analysis NAME on each of SOURCES and draw one figure.

    SOURCES are runs, folders of runs, or models of any other kind (`buttress list sources`), which
    need --data unless there is a run beside them. Results of runs are saved in the runs. --model,
    --mean and --std describe files and folders of weights, --pretrained every timm:NAME.
    """
    from buttress.analysis import ANALYSES, NamedModel, analyze_runs, save_figure
    from buttress.config import apply_overrides

    entry, spec = ANALYSES.entry(name), ANALYSES.spec(name)
    runs, names = _find_runs(name, sources, needs_runs=spec.subject != "none")
    members: list[Run | NamedModel] = [*runs]
    if names:
        images = _load_images(runs, dataset, split, limit, image_size)
        members += [NamedModel(n, images, _model_request(n, model_values, images)) for n in names]
    args = apply_overrides({}, overrides)
    with show_progress() as progress:
        results, reasons = analyze_runs(
            name, members, out, args=args, limit=limit, progress=progress
        )
    if plot is not None and results:
        save_figure(spec.result.plot, results, plot)
    if as_json:
        content = {k or entry.name: r.model_dump(mode="json") for k, r in results.items()}
        skipped = {label: {"does_not_apply": reason} for label, reason in reasons.items()}
        print_json({**content, **skipped})
        return
    for label, result in results.items():
        print_line(f"{label or entry.name}: {result.summary()}")
        if (table := result.table()) is not None:
            print_line(format_table(*table))
    for label, reason in reasons.items():
        print_line(f"{label}: does not apply: {reason}")
    if plot is not None and results:
        print_line(f"figure: {plot}")


def _find_runs(
    name: str, sources: tuple[str, ...], needs_runs: bool
) -> tuple[list[Run], list[str]]:
    """The runs in the folders, and the names of other models; a standalone analysis takes none."""
    from buttress.models.core import is_known
    from buttress.models.loading.folder import WEIGHT_FILES
    from buttress.results.run import find_runs

    if not needs_runs and sources:
        raise click.UsageError(f"analysis {name!r} takes no runs, but got {sources[0]}")
    if needs_runs and not sources:
        raise click.UsageError(f"analysis {name!r} needs at least one run folder or model")
    runs: list[Run] = []
    names = []
    for source in sources:
        folder = Path(source).expanduser()
        runs_below = find_runs(folder) if folder.is_dir() else []
        if runs_below:
            runs += runs_below
            continue
        if folder.is_dir() and not any((folder / f).is_file() for f in WEIGHT_FILES):
            raise UserError(f"no run found in {source}; train one with `buttress train`")
        if not (folder.exists() or ":" in source or is_known(source)):
            raise UserError(f"{source} is neither a run nor a model; see `buttress list sources`")
        names.append(source)
    return runs, names


def _load_images(
    runs: list[Run], data: str | None, split: str, limit: int | None, image_size: int | None
) -> Dataset:
    """The images of models that are not runs: of --data, or of the first run beside them."""
    if data is None and not runs:
        raise UserError("--data is required for a model that is not a run, e.g. --data cifar10")
    return load_images(runs[0] if runs else None, data, split, limit, image_size)


def _model_request(name: str, values: dict[str, Any], images: Dataset) -> ModelRequest:
    """The options that apply to a model: those of bare weights to these, --pretrained to timm."""
    from buttress.models.loading.folder import read_description

    path = Path(name).expanduser()
    if not (path.is_file() or (path.is_dir() and read_description(path) is None)):
        values = {**values, "model": None, "mean": None, "std": None}
    is_pretrained = values["pretrained"] and name.startswith("timm:")
    return source_options({**values, "pretrained": is_pretrained}, images)
