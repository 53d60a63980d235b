"""`buttress quickstart`: a small study on bundled data."""

from __future__ import annotations

from pathlib import Path

import click

from buttress.cli.console import (
    format_estimate,
    format_table,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.options import JSON_OPTION
from buttress.errors import UserError
from buttress.system.cpu import available_cpus


@click.command("quickstart")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/quickstart"),
              show_default=True, help="Output folder for runs and report.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), default=None,
              help="Number of processes (default: one per CPU core).")  # fmt: skip
@JSON_OPTION
def command(out: Path, workers: int | None, as_json: bool) -> int:
    """Train four small architectures on digits, evaluate them and write a report.

    Each is trained with standard and with adversarial training. Run it again to resume.
    """
    from buttress.report import write_report
    from buttress.results.run import Run
    from buttress.results.run_results import RunResults
    from buttress.results.study_result import write_study_result
    from buttress.studies import answer_study, expand_study, load_study, make_jobs
    from buttress.studies.runner import run_jobs

    if out.exists() and not out.is_dir():
        raise UserError(f"--out must be a folder, but {out} is a file")
    expanded = expand_study(load_study("quickstart"), "digits")
    jobs = make_jobs(expanded, out)
    study, workers = expanded.study, workers or available_cpus()
    with show_progress() as progress:
        failures = run_jobs(jobs, workers=workers, retry=True, progress=progress)
        page = write_report(
            [out / "runs"], out / "report", title=study.title, subtitle=study.question,
            study_results=[write_study_result(out, answer_study(expanded, out))],
        )  # fmt: skip
    suite = expanded.scaled.suites[0]
    rows = [
        (job.spec, RunResults(Run(job.folder)).evaluation(suite))
        for job in jobs
        if Run(job.folder).state == "done"
    ]
    rows.sort(key=lambda row: -row[1].worst_case)
    if as_json:
        runs = [{"model": s.model, "recipe": s.recipe.name, **e.to_dict()} for s, e in rows]
        failed = [{"model": f.job.spec.model, "message": f.message} for f in failures]
        print_json({"report": str(page), "runs": runs, "failures": failed})
        return 1 if failures else 0
    names = list(rows[0][1].records) if rows else []
    lines = [
        [s.model, s.recipe.objective.name,
         *(format_estimate(e.estimate(n)) for n in names),
         format_estimate(e.estimate())
         + ("" if e.is_trustworthy else " (not trustworthy)")]
        for s, e in rows
    ]  # fmt: skip
    print_line(format_table(["model", "training", *names, "worst-case"], lines))
    for failure in failures:
        print_line(f"failed: {failure.job.label()}: {failure.message}")
    count = len(rows[0][1]) if rows else 0
    print_line(f"\nAccuracy on {count} test images (95% interval). Report: {page}")
    return 1 if failures else 0
