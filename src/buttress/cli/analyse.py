"""`buttress analyse`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.console import say, say_json, showing, table
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.progress import Progress
    from buttress.records.run import Run


@click.command("analyse")
@click.argument("name")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Arguments.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the runs into a PNG, SVG or PDF."
)
@click.option("--limit", type=click.IntRange(1), help="The first test images only.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("analysis"), show_default=True,
              help="Where the result of an analysis of several runs or of none goes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(
    name: str, runs: tuple[Path, ...], changes: tuple[str, ...], plot: Path | None,
    limit: int | None, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Compute analysis NAME of each run, save it there, and draw them in one picture."""
    from buttress.analysis import (
        ANALYSES,
        analyse_alone,
        analyse_together,
        draw,
        is_standalone,
        is_together,
    )
    from buttress.spec import override

    entry = ANALYSES.entry(name)
    found = _runs(name, runs, wanted=not is_standalone(entry))
    args = override({}, changes)
    reasons: dict[str, str] = {}
    with showing() as progress:
        if is_standalone(entry):
            results = {"": analyse_alone(name, out, args=args, progress=progress)}
        elif is_together(entry):
            done = analyse_together(name, found, out, args=args, limit=limit, progress=progress)
            results = {f"{len(found)} runs": done}
        else:
            results, reasons = _each(name, found, args, limit, progress)
    if plot is not None and results:
        draw(entry.extra["plot"], results, plot)
    if as_json:
        content = {k or entry.name: r.model_dump(mode="json") for k, r in results.items()}
        skipped = {label: {"does_not_apply": why} for label, why in reasons.items()}
        say_json({**content, **skipped})
        return
    says = entry.extra.get("says")
    for label, result in results.items():
        say(f"{label or entry.name}: {says(result) if says else summary(result)}")
        if make := entry.extra.get("table"):
            say(table(*make(result)))
    for label, reason in reasons.items():
        say(f"{label}: does not apply: {reason}")
    if plot is not None and results:
        say(f"picture: {plot}")


def _runs(name: str, paths: tuple[Path, ...], wanted: bool) -> list[Run]:
    """The runs in the folders; an analysis that looks at none is given none."""
    from buttress.records.run import find_runs

    if not wanted and paths:
        raise click.UsageError(f"analysis {name!r} looks at no run: leave out {paths[0]}")
    if wanted and not paths:
        raise click.UsageError(f"analysis {name!r} looks at runs: name their folders")
    found = [run for path in paths for run in find_runs(path)]
    if wanted and not found:
        raise UserError(f"there is no run in {', '.join(map(str, paths))}; train one first")
    return found


def _each(
    name: str, runs: list[Run], args: dict[str, Any], limit: int | None, progress: Progress
) -> tuple[dict[str, Any], dict[str, str]]:
    """The result of each run, and why there is none for the others."""
    from buttress.analysis import DoesNotApply, analyse
    from buttress.analysis.subject import labels_of, subject_of

    results: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    task = progress.task(f"analyse {name}", len(runs))
    for run, label in zip(runs, labels_of(runs), strict=True):
        try:
            subject = subject_of(run, limit=limit, progress=progress)
            results[label] = analyse(name, run, args=args, subject=subject, progress=progress)
        except DoesNotApply as error:
            reasons[label] = str(error)
        task.advance(1, note=label)
    task.close()
    return results, reasons


def summary(result: object) -> str:
    """The plain numbers of a result, in one line."""
    values = {k: v for k, v in vars(result).items() if isinstance(v, (int, float, str))}
    return ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()
    )
