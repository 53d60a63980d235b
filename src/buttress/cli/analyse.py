"""`buttress analyse`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from buttress.cli.console import say, say_json, showing
from buttress.errors import UserError


@click.command("analyse")
@click.argument("name")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Arguments.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the runs into a PNG, SVG or PDF."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(
    name: str, runs: tuple[Path, ...], changes: tuple[str, ...], plot: Path | None, as_json: bool
) -> None:
    """Compute analysis NAME of each run, save it there, and draw them in one picture."""
    from buttress.analysis import ANALYSES, analyse
    from buttress.records.run import find_runs
    from buttress.spec import override

    entry = ANALYSES.entry(name)
    found = [run for path in runs for run in find_runs(path)]
    if not found:
        raise UserError(f"there is no run in {', '.join(map(str, runs))}; train one first")
    args = override({}, changes)
    results = {}
    with showing() as progress:
        task = progress.task(f"analyse {entry.name}", len(found))
        for run in found:
            label = f"{run.spec.model} / {run.spec.recipe.name}"
            label = label if label not in results else f"{label} ({run.path.name})"
            results[label] = analyse(name, run, args=args, progress=progress)
            task.advance(1, note=label)
        task.close()
    if plot is not None:
        draw(entry.extra["plot"], results, plot)
    if as_json:
        say_json({label: result.model_dump(mode="json") for label, result in results.items()})
        return
    for label, result in results.items():
        say(f"{label}: {summary(result)}")
    if plot is not None:
        say(f"picture: {plot}")


def summary(result: object) -> str:
    """The plain numbers of a result, in one line."""
    values = {k: v for k, v in vars(result).items() if isinstance(v, (int, float, str))}
    return ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()
    )


def draw(plot: Any, results: Mapping[str, Any], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from buttress.files import replacing

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"a picture is .png, .svg or .pdf, but got {path}")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    plot(results, figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
