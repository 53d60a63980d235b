"""`buttress analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from buttress.cli.console import format_table, print_json, print_line, show_progress
from buttress.cli.options import JSON_OPTION
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.results.run import Run


@click.command("analyze")
@click.argument("name")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Argument of the analysis; repeatable.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), help="Write a figure (PNG, SVG or PDF).")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N test images.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("analysis"), show_default=True,
              help="Output folder for analyses of several runs or of none.")  # fmt: skip
@JSON_OPTION
def command(
    name: str, runs: tuple[Path, ...], overrides: tuple[str, ...], plot: Path | None,
    limit: int | None, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Run analysis NAME on each run, save the results in the runs and draw one figure."""
    from buttress.analysis import ANALYSES, analyze_runs, is_standalone_analysis, save_figure
    from buttress.config import apply_overrides

    entry = ANALYSES.entry(name)
    run_list = _find_runs(name, runs, needs_runs=not is_standalone_analysis(entry))
    args = apply_overrides({}, overrides)
    with show_progress() as progress:
        results, reasons = analyze_runs(
            name, run_list, out, args=args, limit=limit, progress=progress
        )
    if plot is not None and results:
        save_figure(ANALYSES.spec(name).result.plot, results, plot)
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


def _find_runs(name: str, paths: tuple[Path, ...], needs_runs: bool) -> list[Run]:
    """Find the runs in the folders; a standalone analysis takes none."""
    from buttress.results.run import find_runs

    if not needs_runs and paths:
        raise click.UsageError(f"analysis {name!r} takes no runs, but got {paths[0]}")
    if needs_runs and not paths:
        raise click.UsageError(f"analysis {name!r} needs at least one run folder")
    runs = [run for path in paths for run in find_runs(path)]
    if needs_runs and not runs:
        where = ", ".join(map(str, paths))
        raise UserError(f"no run found in {where}; train one with `buttress train`")
    return runs
