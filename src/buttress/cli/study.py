"""`buttress study`: list, plan, run, status and report."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.catalog import catalog_rows
from buttress.cli.checks import check_dataset, check_preset
from buttress.cli.console import (
    format_amount,
    format_duration,
    format_table,
    format_with_interval,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.options import (
    JSON_OPTION,
    SCALE_OPTION,
    WORKERS_OPTION,
    SuggestingGroup,
    add_options,
    checked,
    runner_options,
)

if TYPE_CHECKING:
    from buttress.results.study_result import StudyResult, TableValue
    from buttress.studies import ExpandedStudy
    from buttress.studies.plan import StudyPlan, StudyStatus


@click.group("study", cls=SuggestingGroup)
def command() -> None:
    """Plan, run and report studies: a question and the grid of runs that answers it."""


# The options of every command on one study.
study_options = add_options(
    click.argument("study", callback=checked(lambda name: check_preset("study", name))),
    SCALE_OPTION,
    click.option("--data", metavar="NAME", callback=checked(check_dataset),
                 help="Run the study on another dataset."),
    click.option("--out", type=click.Path(path_type=Path), default=Path("results"),
                 show_default=True, help="Output folder; studies in one folder share runs."),
    JSON_OPTION,
)  # fmt: skip


def _expand(
    study: str, scale: str | None, data: str | None, tables: tuple[str, ...] = ()
) -> ExpandedStudy:
    """Load a study and expand its grid; mistakes in it raise here."""
    from buttress.studies import expand_study, load_study
    from buttress.studies.published import with_table_files

    files = {}
    for table in tables:
        name, equals, file = table.partition("=")
        if not equals or not name or not file:
            raise click.UsageError(f"--table must be NAME=FILE, but got {table!r}")
        files[name] = Path(file)
    spec = with_table_files(load_study(study), files)
    return expand_study(spec, spec.choose_scale(scale), data)


only_option = click.option(
    "--only", multiple=True, metavar="AXIS=LABEL,...", help="Select labels of an axis; repeatable."
)


@command.command("list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List the bundled studies."""
    rows = catalog_rows("studies")
    if as_json:
        print_json(rows)
    else:
        table = [[row["name"], row["question"]] for row in rows]
        print_line(format_table(["name", "question"], table))


@command.command("plan")
@study_options
@only_option
@click.option(
    "--device", default="auto", show_default=True, help="Device on which a model is timed."
)
@click.option("--device-name", help="Estimate for another device: a100, v100, cpu-core ...")
@WORKERS_OPTION
def plan(
    study: str, scale: str | None, data: str | None, out: Path, as_json: bool, **options: Any
) -> None:
    """Check a study and estimate its cost; STUDY is a name or YAML file."""
    from buttress.studies import parse_label_filter, plan_study
    from buttress.studies.runner import default_workers, worker_threads

    expanded = _expand(study, scale, data)
    label_filter = parse_label_filter(options.pop("only"), expanded)
    workers = options.pop("workers") or default_workers()
    with show_progress() as progress, worker_threads(workers):
        study_plan = plan_study(
            expanded, out, label_filter=label_filter, progress=progress, **options
        )
    if as_json:
        print_json(study_plan.model_dump(mode="json"))
    else:
        _print_plan(study_plan, workers)


def _print_plan(study_plan: StudyPlan, workers: int) -> None:
    groups: dict[str, list[Any]] = {}
    for run in study_plan.runs:
        groups.setdefault(run.label, []).append(run)
    rows = [
        [label, str(len(runs)), str(sum(r.state == "done" for r in runs)),
         format_amount(sum(r.flops for r in runs), "FLOP"),
         format_duration(None if any(r.seconds is None for r in runs)
                  else sum(r.seconds for r in runs)),
         format_amount(max(r.memory_bytes for r in runs), "B")]
        for label, runs in groups.items()
    ]  # fmt: skip
    if rows:
        header = ["configuration", "runs", "done", "remaining", "time", "memory"]
        print_line(format_table(header, rows) + "\n")
    counts = ", ".join(f"{n} {state}" for state, n in study_plan.runs_by_state.items() if n)
    print_line(f"{study_plan.study} at scale {study_plan.scale}: {counts or 'no runs'}")
    forward, backward = (
        format_amount(study_plan.forward_passes),
        format_amount(study_plan.backward_passes),
    )
    passes = f"{forward} forward and {backward} backward passes"
    print_line(f"remaining: {passes}, {format_amount(study_plan.flops, 'FLOP')}")
    if study_plan.memory_bytes:
        print_line(f"memory per device: up to {format_amount(study_plan.memory_bytes, 'B')}")
    if study_plan.measured_memory_bytes:
        peak = format_amount(study_plan.measured_memory_bytes, "B")
        print_line(f"measured in finished runs: up to {peak} per process, Python included")
    if study_plan.hours is not None and study_plan.flops:
        wall_time = format_duration(3600 * study_plan.hours / workers)
        source = study_plan.estimate_basis
        print_line(f"estimated time: {wall_time} with {workers} workers (based on {source})")
    for warning in study_plan.warnings:
        print_line(f"warning: {warning}")


@command.command("run")
@study_options
@runner_options
@only_option
@click.option("--shard", metavar="I/N", default="1/1", help="Execute shard I of N of the runs.")
def run(
    study: str, scale: str | None, data: str | None, out: Path, as_json: bool, **options: Any
) -> int:
    """Execute the missing runs of a study and write its answer; STUDY is a name or YAML file.

    The command can be interrupted and resumed, and run on several machines at once.
    """
    from buttress.report import write_study_report
    from buttress.studies import parse_label_filter
    from buttress.studies.runner import RunnerOptions, parse_shard, run_study

    expanded, shard = _expand(study, scale, data), parse_shard(options.pop("shard"))
    only = parse_label_filter(options.pop("only"), expanded)
    runner = RunnerOptions(shard=shard, label_filter=only, **options)
    with show_progress() as progress:
        outcome = run_study(expanded, out, runner, progress)
        page = None if outcome.other_shards else write_study_report(outcome.answer, out, progress)
    failures = {f.job.key: f.message for f in outcome.failed_jobs}
    if as_json:
        content = {"failed_here": failures, "answer": outcome.answer.model_dump(mode="json")}
        print_json({"left": outcome.other_shards, "report": page and str(page), **content})
    else:
        _print_answer(outcome.answer)
        for key, message in failures.items():
            print_line(f"failed: {key}: {message}")
        if failures:
            print_line("use --retry to run failed runs again")
        print_line(
            f"report: {page}" if page else f"{outcome.other_shards} runs belong to other shards"
        )
    return 1 if failures else 0


def _print_answer(answer: StudyResult) -> None:
    runs_text = f"{answer.finished_runs} of {answer.total_runs} runs"
    print_line(f"{answer.title} ({answer.scale}): {runs_text}\n{answer.question}\n")
    if answer.rows:
        rows = [_answer_row(answer, row) for row in answer.rows]
        titles = [answer.column_title(column) for column in answer.columns]
        print_line(format_table([*answer.axes, *titles], rows) + "\n")
    for text in _claim_lines(answer):
        print_line(answer.with_titles(text))
    if answer.scale == "smoke" and answer.claims:
        print_line("The scale smoke shows only that the parts fit together: no claim is decided.")


def _claim_lines(answer: StudyResult) -> Iterator[str]:
    """Each claim: measured here, published, and in tables by other authors."""
    for claim in answer.claims:
        yield f"{claim.id}: {claim.statement}"
        reason = f": {claim.reason}" if claim.reason else ""
        yield f"   measured here: {claim.outcome}{reason}" + _in_brackets(claim.evidence)
        if claim.published:
            yield f"   published: {claim.published}" + _in_brackets(claim.published_evidence)
        for other in claim.other_tables:
            texts = _in_brackets(other.evidence) + (f"; {other.reason}" if other.reason else "")
            yield f"   other authors: {other.outcome}{texts}; {other.source}. {other.limits}"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _answer_row(answer: StudyResult, row: Any) -> list[str]:
    cells = []
    for name in answer.columns:
        number = row.values[name]
        trust_mark = " (not trustworthy)" if number.is_untrustworthy else ""
        cells.append(_format_number(number, answer.units[name] == "percent") + trust_mark)
    return [*row.labels, *cells]


def _format_number(number: TableValue, is_percent: bool) -> str:
    """Format a number with its 95% interval, if it has one."""
    value, interval = number.value, (number.low, number.high)
    if is_percent or value is None:
        return format_with_interval(value, None if None in interval else interval)  # type: ignore[arg-type]
    return f"{value:.4g}" + (
        "" if None in interval else f" ({interval[0]:.4g} to {interval[1]:.4g})"
    )


@command.command("status")
@study_options
@click.option("--watch", type=click.FloatRange(1, 86400), help="Refresh every N seconds.")
def status(
    study: str, scale: str | None, data: str | None, out: Path, as_json: bool, watch: float | None
) -> int:
    """Show finished, running and remaining runs; STUDY is a name or YAML file."""
    import time

    from buttress.studies.runner import read_study_status

    expanded = _expand(study, scale, data)
    while True:
        with show_progress() as progress:
            study_status = read_study_status(expanded, out, progress=progress)
        if as_json:
            print_json(study_status.model_dump(mode="json"))
        else:
            _print_status(study_status)
        counts = study_status.plan.runs_by_state
        is_over = counts["done"] + counts["failed"] == len(study_status.plan.runs)
        if watch is None or is_over:
            return 1 if counts["failed"] else 0
        time.sleep(watch)


def _print_status(study_status: StudyStatus) -> None:
    counts, total = study_status.plan.runs_by_state, len(study_status.plan.runs)
    done_fraction = counts["done"] / total if total else 1.0
    bar = ("#" * round(24 * done_fraction)).ljust(24, ".")
    alive = [run for run in study_status.active_runs if not run.is_stale]
    time_left = format_duration(study_status.seconds_left)
    title = f"{study_status.plan.study} at scale {study_status.plan.scale}"
    print_line(f"{title}: [{bar}] {counts['done']} of {total} done")
    if counts["done"] < total:
        print_line(f"about {time_left} remaining with {max(len(alive), 1)} workers")
    print_line(", ".join(f"{n} {state}" for state, n in counts.items() if n))
    rows = [
        [
            run.label,
            run.key,
            f"{run.host} {run.pid}",
            f"{run.epochs_done}/{run.epochs_total}",
            str(run.tasks_done),
            run.started_at,
            "stale: its process has exited" if run.is_stale else "",
        ]
        for run in study_status.active_runs
    ]
    if rows:
        header = ["running", "key", "host and pid", "epochs", "tasks", "since", ""]
        print_line("\n" + format_table(header, rows))
    for run in study_status.plan.runs:
        if run.state == "failed":
            print_line(f"failed: {run.key}: {run.error}")


@command.command("report")
@study_options
@click.option("--table", "tables", multiple=True, metavar="NAME=FILE",
              help="Your copy of a table by other authors that the study names, e.g. "
              "nares=cifar10.jsonl.")  # fmt: skip
def report(
    study: str, scale: str | None, data: str | None, out: Path, as_json: bool,
    tables: tuple[str, ...],
) -> None:  # fmt: skip
    """Write the answer and report of a study from its finished runs; STUDY is a name or file."""
    from buttress.report import write_study_report
    from buttress.results.attack_record import cache_records
    from buttress.studies import write_study_answer

    gc.freeze()  # keeps the collector from scanning the modules while records load
    with show_progress() as progress, cache_records():
        answer = write_study_answer(_expand(study, scale, data, tables), out, progress=progress)
        page = write_study_report(answer, out, progress)
    if as_json:
        print_json({"report": str(page), "answer": answer.model_dump(mode="json")})
    else:
        _print_answer(answer)
        print_line(f"report: {page}")
