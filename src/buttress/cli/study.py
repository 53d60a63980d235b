"""`buttress study`: list, plan, run, status and report."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.console import ranged, say, say_json, showing, table
from buttress.cli.runners import WORKERS, runners
from buttress.cli.words import amount, duration

if TYPE_CHECKING:
    from buttress.records.answer import Answer, Number
    from buttress.records.plan import Plan, Status

Command = Callable[..., Any]


@click.group("study")
def command() -> None:
    """Plan, run and report studies: a question and the grid of runs that answers it."""


def common(function: Command) -> Command:
    """What every command on one study takes."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("--out", type=click.Path(path_type=Path), default=Path("results"),
                     show_default=True, help="Where runs and answers are; studies share it."),
        click.option("--scale", default="smoke", show_default=True, help="smoke, mini or paper."),
        click.argument("study"),
    ):  # fmt: skip
        function = option(function)
    return function


part = click.option(
    "--only", multiple=True, metavar="AXIS=LABEL,...", help="Only runs at these labels; repeatable."
)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(as_json: bool) -> None:
    """List the studies that come with Buttress."""
    from buttress.study import list_studies, load_study

    studies = [load_study(name) for name in list_studies()]
    if as_json:
        rows = [{"name": s.name, "question": s.question, "source": s.source} for s in studies]
        say_json(rows)
    else:
        say(table(["name", "question"], [[s.name, s.question] for s in studies]))


@command.command("plan")
@common
@part
@click.option("--device", default="auto", show_default=True, help="Where models are timed.")
@click.option("--device-name", help="Estimate for another device instead: a100, v100, cpu-core ...")
@click.option("--workers", type=WORKERS, help="Runs at once; one per GPU or core.")
def plan(
    study: str, scale: str, out: Path, as_json: bool, workers: int | None, only: tuple[str, ...],
    **where: Any,
) -> None:  # fmt: skip
    """Check a study and say what it will cost before anything starts; STUDY is a name or a file."""
    from buttress.running import default_workers, threads_of_one
    from buttress.study import check_scale, load_study, parse_only, plan_of

    spec, size = load_study(study), check_scale(scale)
    some = parse_only(only, spec, size)
    workers = workers or default_workers()
    with showing() as progress, threads_of_one(workers):
        found = plan_of(spec, size, out, only=some, progress=progress, **where)
    if as_json:
        say_json(found.model_dump(mode="json"))
    else:
        _say_plan(found, workers)


def _say_plan(found: Plan, workers: int) -> None:
    groups: dict[str, list[Any]] = {}
    for run in found.runs:
        groups.setdefault(run.label, []).append(run)
    rows = [
        [label, str(len(runs)), str(sum(r.state == "done" for r in runs)),
         amount(sum(r.flops for r in runs), "FLOP"),
         duration(None if any(r.seconds is None for r in runs)
                  else sum(r.seconds for r in runs))]
        for label, runs in groups.items()
    ]  # fmt: skip
    if rows:
        say(table(["runs of", "runs", "done", "left", "time left"], rows) + "\n")
    counts = ", ".join(f"{n} {word}" for word, n in found.counts.items() if n) or "no runs"
    say(f"{found.study} at scale {found.scale}: {counts}")
    passes = f"{amount(found.forward)} forward and {amount(found.backward)} backward passes"
    say(f"left: {passes}, {amount(found.flops, 'FLOP')}")
    if found.hours is not None and found.flops:
        wall = duration(3600 * found.hours / workers)
        say(f"time: about {wall} with {workers} at once, from {found.known_from}")


@command.command("run")
@common
@runners
@part
@click.option("--shard", metavar="I/N", default="1/1", help="Only part I of N of the runs.")
def run(study: str, scale: str, out: Path, as_json: bool, **how: Any) -> int:
    """Do what is missing of a study, then answer its question; STUDY is a name or a file.

    It may be stopped at any moment and started again, on several machines at once.
    """
    from buttress.running import Launch, carry_out, parse_part
    from buttress.study import check_scale, load_study, parse_only

    spec, size = load_study(study), check_scale(scale)
    shard, only = parse_part(how.pop("shard")), parse_only(how.pop("only"), spec, size)
    with showing() as progress:
        done = carry_out(spec, size, out, Launch(part=shard, only=only, **how), progress)
        page = None if done.left else _write_report(done.answer, out, progress)
    failures = {f.work.key: f.message for f in done.failures}
    if as_json:
        content = {"left": done.left, "failed_here": failures, "report": page and str(page)}
        say_json({**content, "answer": done.answer.model_dump(mode="json")})
    else:
        _say_answer(done.answer)
        for key, message in failures.items():
            say(f"failed: {key}: {message}")
        if failures:
            say("`--retry` tries failed runs again")
        say(f"report: {page}" if page else f"{done.left} runs are left to other shards")
    return 1 if failures else 0


def _say_answer(found: Answer) -> None:
    say(f"{found.title} ({found.scale}): {found.done} of {found.runs} runs\n{found.question}\n")
    if found.lines:
        say(table([*found.axes, *found.columns], [_line(found, line) for line in found.lines]))
        say("")
    for claim in found.claims:
        say(f"{claim.id} {claim.word}: {claim.says} ({claim.evidence})")
        say(f"   published: {claim.published}" if claim.published else "")


def _line(found: Answer, line: Any) -> list[str]:
    cells = []
    for name in found.columns:
        number = line.numbers[name]
        mark = " untrustworthy" if number.untrustworthy else ""
        cells.append(_spelt(number, found.units[name] == "percent") + mark)
    return [*line.labels, *cells]


def _spelt(number: Number, is_share: bool) -> str:
    """A number with its 95% interval, where it has one."""
    value, span = number.value, (number.low, number.high)
    if is_share or value is None:
        return ranged(value, None if None in span else span)  # type: ignore[arg-type]
    return f"{value:.4g}" + ("" if None in span else f" ({span[0]:.4g} to {span[1]:.4g})")


@command.command("status")
@common
@click.option("--watch", type=click.FloatRange(1, 86400), help="Look again every so many seconds.")
def status(study: str, scale: str, out: Path, as_json: bool, watch: float | None) -> int:
    """Say what is done, what runs where, and how long the rest takes; STUDY is a name or a file."""
    import time

    from buttress.running import status_of
    from buttress.study import check_scale, load_study

    spec, size = load_study(study), check_scale(scale)
    while True:
        with showing() as progress:
            found = status_of(spec, size, out, progress=progress)
        if as_json:
            say_json(found.model_dump(mode="json"))
        else:
            _say_status(found)
        is_over = found.plan.counts["done"] + found.plan.counts["failed"] == len(found.plan.runs)
        if watch is None or is_over:
            return 1 if found.plan.counts["failed"] else 0
        time.sleep(watch)


def _say_status(found: Status) -> None:
    counts, total = found.plan.counts, len(found.plan.runs)
    share = counts["done"] / total if total else 1.0
    bar = ("#" * round(24 * share)).ljust(24, ".")
    at_work = [run for run in found.active if not run.is_stale]
    left = duration(found.seconds_left)
    where = f"{found.plan.study} at scale {found.plan.scale}"
    say(f"{where}: [{bar}] {counts['done']} of {total} done")
    if counts["done"] < total:
        say(f"about {left} left with {max(len(at_work), 1)} at once")
    say(", ".join(f"{n} {word}" for word, n in counts.items() if n))
    rows = [
        [run.label, run.key, f"{run.host} {run.pid}", f"{run.epochs}/{run.of}", str(run.tasks),
         run.since, "its process is gone" if run.is_stale else ""]
        for run in found.active
    ]  # fmt: skip
    if rows:
        say("\n" + table(["running", "key", "where", "epochs", "files", "since", ""], rows))
    for run in found.plan.runs:
        if run.state == "failed":
            say(f"failed: {run.key}: {run.error}")


@command.command("report")
@common
def report(study: str, scale: str, out: Path, as_json: bool) -> None:
    """Answer a study from what is there and write its pages; STUDY is a name or a file."""
    from buttress.records.evaluation import reading_once
    from buttress.study import check_scale, conclude, load_study

    gc.freeze()  # the modules stay: no need to look through them while thousands of records come
    with showing() as progress, reading_once():
        found = conclude(load_study(study), check_scale(scale), out, progress=progress)
        page = _write_report(found, out, progress)
    if as_json:
        say_json({"report": str(page), "answer": found.model_dump(mode="json")})
    else:
        _say_answer(found)
        say(f"report: {page}")


def _write_report(found: Answer, root: Path, progress: Any) -> Path:
    """Pages about the runs of a study, beside its answer."""
    from buttress.records.answer import answer_file
    from buttress.records.run import Run
    from buttress.report import write_report

    file = answer_file(root, found.study, found.scale)
    place = file.parent
    keys = dict.fromkeys(key for line in found.lines for key in line.runs)
    folders = [root / "runs" / key for key in keys if Run(root / "runs" / key).exists]
    return write_report(
        folders or [place], place / "report", title=found.title, subtitle=found.question,
        answers=[file], progress=progress,
    )  # fmt: skip
