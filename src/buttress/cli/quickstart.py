"""`buttress quickstart`: the whole product in small, on bundled data."""

from __future__ import annotations

from pathlib import Path

import click

from buttress.cli.console import ranged, say, say_json, showing, table
from buttress.cores import usable_cores
from buttress.errors import UserError


@click.command("quickstart")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/quickstart"),
              show_default=True, help="Where runs and the report go.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), default=None,
              help="Processes; one per core by default.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(out: Path, workers: int | None, as_json: bool) -> int:
    """Train four small architectures on digits with and without an adversary, attack them, report.

    Running it again resumes, or finishes in seconds.
    """
    from buttress.evaluation import load_evaluation
    from buttress.records.answer import write_answer
    from buttress.records.run import Run
    from buttress.report import write_report
    from buttress.running import run_all
    from buttress.study import answer, cells_of, load_study, work_of

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder with --out")
    study = load_study("quickstart")
    scaled = study.scaled("smoke")
    works = work_of(scaled, cells_of(study, "smoke"), out)
    with showing() as progress:
        failures = run_all(works, workers=workers or usable_cores(), retry=True, progress=progress)
        answered = write_answer(out, answer(study, "smoke", out))
        page = write_report(
            [out / "runs"],
            out / "report",
            title=study.title,
            subtitle=study.question,
            answers=[answered],
        )
    rows = []
    for work in works:
        if Run(work.folder).state != "done":
            continue
        rows.append((work.spec, load_evaluation(Run(work.folder).suite_folder(scaled.suites[0]))))
    rows.sort(key=lambda row: -row[1].worst_case)
    if as_json:
        say_json(
            {
                "report": str(page),
                "runs": [
                    {"model": s.model, "recipe": s.recipe.name, **e.to_dict()} for s, e in rows
                ],
                "failures": [{"model": f.work.spec.model, "message": f.message} for f in failures],
            }
        )
        return 1 if failures else 0
    names = list(rows[0][1].records) if rows else []
    lines = [
        [s.model, s.recipe.objective.name, *(ranged(e.accuracy[n], e.interval(n)) for n in names),
         ranged(e.worst_case, e.interval()) + ("" if e.trustworthy else " untrustworthy")]
        for s, e in rows
    ]  # fmt: skip
    say(table(["model", "training", *names, "worst case"], lines))
    for failure in failures:
        say(f"failed: {failure.work.label()}: {failure.message}")
    count = len(rows[0][1]) if rows else 0
    say(f"\nAccuracy on {count} test images, in brackets its 95% interval. Report: {page}")
    return 1 if failures else 0
