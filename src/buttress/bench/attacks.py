"""Attack benchmarks: cases, interleaved runs, and result tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buttress.bench.attack_case import ToolRun, run_tool
from buttress.bench.attack_tools import installed_tools
from buttress.bench.models import BENCHMARK_MODELS, benchmark_model, train_if_missing
from buttress.bench.repeats import SubprocessJob, median_row, run_interleaved, write_results
from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.statistics import wilson_interval
from buttress.system.progress import Progress
from buttress.threats.norm_ball import NormBall

Row = dict[str, Any]  # of a result file: settings of a `ToolRun`, and a `ToolResult`

REFERENCE = "pyautoattack"


@dataclass(frozen=True)
class AttackBenchmark:
    """What tools are compared at; without images or threats it takes those of the model."""

    title: str
    images: int | None = None
    threats: tuple[str, ...] = ()
    small_only: bool = False  # on the small model alone


BENCHMARKS = {
    "pgd": AttackBenchmark("PGD-20", threats=("Linf:8/255",)),
    "autoattack": AttackBenchmark("AutoAttack standard"),
    "workers": AttackBenchmark(
        "short AutoAttack in one and two processes", 256, ("Linf:2/255",), small_only=True
    ),
    "strength": AttackBenchmark(
        "attacks from weak to strong", 300, ("Linf:2/255", "L1:5", "L1:12"), small_only=True
    ),
}


@dataclass(frozen=True)
class BenchmarkCase:
    """Tools that attack the same model under the same threat model."""

    benchmark: str
    tool_runs: tuple[ToolRun, ...]

    @property
    def title(self) -> str:
        first = self.tool_runs[0]
        model = benchmark_model(first.model)
        return f"{model.title}, {BENCHMARKS[self.benchmark].title}, {first.threat}"


def benchmark_attacks(
    settings: ToolRun,
    models: Sequence[str],
    benchmarks: Sequence[str],
    threats: Sequence[str],
    repeats: int,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Run all cases, and write the results to ``out`` after each; return them.

    Models are trained for a few minutes the first time. A checkpoint replaces the small model.
    """
    max_images = len(load_dataset(settings.data, "test"))
    cases = list(benchmark_cases(settings, models, benchmarks, threats, max_images))
    for name in models:
        if not (name == "small" and settings.checkpoint):
            train_if_missing(name, settings.data, progress)
    rows: list[Row] = []
    for case in cases:
        rows += run_case(case, repeats, progress)
        write_results(out, rows)
    return write_results(out, rows)


def benchmark_cases(
    settings: ToolRun,
    models: Sequence[str],
    benchmarks: Sequence[str],
    threats: Sequence[str],
    max_images: int,
) -> Iterator[BenchmarkCase]:
    """All cases; images, data and checkpoint of ``settings`` apply to every case.

    Without threats each benchmark has its own, and without a number of images at most
    ``max_images``.
    """
    if unknown := [name for name in benchmarks if name not in BENCHMARKS]:
        raise UserError(f"a case must be one of {', '.join(BENCHMARKS)}, but got {unknown[0]!r}")
    for name in models:
        model = benchmark_model(name)
        for key in benchmarks:
            benchmark = BENCHMARKS[key]
            if benchmark.small_only and name != "small":
                continue
            images = model.pgd_images if key == "pgd" else benchmark.images or model.images
            for threat in threats or benchmark.threats or model.threats:
                tool_run = replace(
                    settings,
                    model=name,
                    images=settings.images or min(max_images, images),
                    threat=threat,
                    checkpoint=settings.checkpoint if name == "small" else None,
                    warm_up=key == "pgd",
                )
                tools = installed_tools(key, NormBall.parse(threat).norm)
                yield BenchmarkCase(key, tuple(replace(tool_run, tool=tool) for tool in tools))


def run_case(case: BenchmarkCase, repeats: int, progress: Progress) -> list[Row]:
    """Run all tools interleaved, repeatedly; return a row of medians for each."""
    jobs = {tool_run.tool: SubprocessJob(run_tool, tool_run) for tool_run in case.tool_runs}
    results = run_interleaved(case.title, jobs, repeats, progress)
    return [
        median_row(run, results[run.tool], benchmark=case.benchmark, title=case.title)
        for run in case.tool_runs
        if results[run.tool]
    ]


COLUMNS = (
    "seconds",
    "of the slowest",
    "relative to bare passes",
    "relative to the floor",
    "passes per image (F, B)",
    "MB",
    "robust",
    "agreement with reference",
)


def full_tables(rows: Sequence[Row], level: int = 0) -> Iterator[str]:
    """Markdown table of each case, under a title or a heading of this level."""
    for title in dict.fromkeys(row["title"] for row in rows):
        case_rows = [row for row in rows if row["title"] == title]
        slowest = max(row["seconds"] for row in case_rows)
        reference = next((row for row in case_rows if row["tool"] == REFERENCE), None)
        mark = "#" * level + " " if level else ""
        yield f"\n{mark}{title}, {case_rows[0]['images']} images\n"
        yield "| | " + " | ".join(COLUMNS) + " |"
        yield "| --- |" + " --- |" * len(COLUMNS)
        for row in case_rows:
            has_passes = row["bare_seconds"] > 0
            cells = (
                f"{row['seconds']:.2f}{_format_setup(row)}",
                f"{row['seconds'] / slowest:.3f}",
                f"{row['seconds'] / row['bare_seconds']:.2f}" if has_passes else "",
                _format_floor_ratio(row),
                f"{row['forward']:.0f}, {row['backward']:.0f}" if has_passes else "",
                f"{row['peak_memory_mb']:.0f}",
                "" if row["tool"] == "bare passes" else _format_robust_accuracy(row),
                _format_agreement(row, reference),
            )
            yield f"| {row['tool']} | " + " | ".join(cells) + " |"


def _format_setup(row: Row) -> str:
    return f" ({row['setup_seconds']:.2f} of it setup)" if row["setup_seconds"] else ""


def _format_floor_ratio(row: Row) -> str:
    """The time relative to that of the bare passes of the inference-optimized model."""
    floor = row.get("floor_seconds", 0.0)  # older results have none
    return f"{row['seconds'] / floor:.2f}" if floor else ""


def _format_robust_accuracy(row: Row) -> str:
    """Robust images, and the 95% interval of robust accuracy."""
    low, high = wilson_interval(round(row["num_robust"]), row["images"])
    return f"{row['num_robust']:.0f} ({100 * low:.0f} to {100 * high:.0f}%)"


def _format_agreement(row: Row, reference: Row | None) -> str:
    """Fraction of images with the same per-sample result as the reference."""
    if reference is None or row is reference:
        return ""
    differing = set(row["robust_images"]) ^ set(reference["robust_images"])
    return f"{1 - len(differing) / row['images']:.1%}"


def summary_table(rows: Sequence[Row]) -> Iterator[str]:
    """Seconds and robust images of the reference AutoAttack and of our ensembles.

    What was not measured has no column: a tool of ours, or the floor.
    """
    measured = {row["tool"] for row in rows}
    names = [name for name in ("autoattack", "fast") if f"buttress {name}" in measured]
    has_floor = any(row.get("floor_seconds") for row in rows)
    columns = ["model, threat model", REFERENCE, *(f"`{n}`" for n in names)]
    columns += [*(["relative to the floor"] if has_floor else []), "robust images"]
    yield f"| {' | '.join(columns)} |"
    yield "|" + " --- |" * len(columns)
    for reference, by_tool in _reference_cases(rows):
        ours = [by_tool[f"buttress {name}"] for name in names]
        seconds = reference["seconds"]
        times = [f"{r['seconds']:.0f} s ({r['seconds'] / seconds:.2f})" for r in ours]
        floor_ratios = [", ".join(map(_format_floor_ratio, ours))] if has_floor else []
        robust_counts = ", ".join(f"{r['num_robust']:.0f}" for r in (reference, *ours))
        cells = [f"{seconds:.0f} s", *times, *floor_ratios]
        cells.append(f"{robust_counts} of {reference['images']}")
        yield f"| {_case_label(reference)} | {' | '.join(cells)} |"


def agreement_table(rows: Sequence[Row]) -> Iterator[str]:
    """Robust accuracy after `autoattack` and the reference, and how many images agree."""
    yield f"| model, threat model | {REFERENCE} | `autoattack` | same per-sample result |"
    yield "| --- | --- | --- | --- |"
    for reference, by_tool in _reference_cases(rows):
        if (ours := by_tool.get("buttress autoattack")) is not None:
            counts = [f"{r['num_robust']:.0f}/{r['images']}" for r in (reference, ours)]
            agreement = _format_agreement(ours, reference)
            yield f"| {_case_label(reference)} | {' | '.join(counts)} | {agreement} |"


def _reference_cases(rows: Sequence[Row]) -> Iterator[tuple[Row, dict[str, Row]]]:
    """The row of the reference of each case that has one, and the rows of all its tools."""
    autoattack_rows = [row for row in rows if row["benchmark"] == "autoattack"]
    for title in dict.fromkeys(row["title"] for row in autoattack_rows):
        by_tool = {row["tool"]: row for row in autoattack_rows if row["title"] == title}
        if REFERENCE in by_tool:
            yield by_tool[REFERENCE], by_tool


def _case_label(row: Row) -> str:
    return f"{BENCHMARK_MODELS[row['model']].title}, {row['threat']}"


def strength_table(rows: Sequence[Row]) -> Iterator[str]:
    """Robust accuracy and passes of single attacks, from weak to strong in each threat model."""
    yield "| threat model | attack | robust accuracy | forward passes | backward passes |"
    yield "| --- | --- | --- | --- | --- |"
    strength_rows = [row for row in rows if row["benchmark"] == "strength"]
    order = list(dict.fromkeys(row["threat"] for row in strength_rows))
    for row in sorted(strength_rows, key=lambda r: (order.index(r["threat"]), -r["num_robust"])):
        accuracy = f"{row['num_robust'] / row['images']:.1%} of {row['images']}"
        passes = f"{row['forward']:.0f} | {row['backward']:.0f}"
        yield f"| {row['threat']} | {row['tool']} | {accuracy} | {passes} |"


ATTACK_TABLES: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "full": full_tables,
    "summary": summary_table,
    "agreement": agreement_table,
    "strength": strength_table,
}
