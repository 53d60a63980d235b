"""Attack benchmarks: cases, interleaved runs, and result tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from buttress.bench import models as networks
from buttress.bench.attack_case import ToolResult, ToolRun
from buttress.bench.attack_tools import installed_tools
from buttress.bench.repeats import SubprocessJob, run_interleaved
from buttress.errors import UserError
from buttress.statistics import wilson_interval
from buttress.system.progress import Progress

WORKER_SCALING_IMAGES = 256
REFERENCE = "pyautoattack"

BENCHMARKS = {
    "pgd": "PGD-20",
    "autoattack": "AutoAttack standard",
    "workers": "short AutoAttack in one and two processes",
}


@dataclass(frozen=True)
class BenchmarkCase:
    """Tools that attack the same model under the same threat model."""

    event: str
    races: tuple[ToolRun, ...]

    @property
    def title(self) -> str:
        first = self.races[0]
        model = networks.benchmark_model(first.network)
        return f"{model.title}, {BENCHMARKS[self.event]}, {first.threat}"


def benchmark_cases(
    names: Sequence[str], benchmarks: Sequence[str], base: ToolRun, max_images: int
) -> Iterator[BenchmarkCase]:
    """All cases; images, data and checkpoint of ``base`` apply to every case.

    Without a number of images there are ``max_images`` at most. A checkpoint replaces the small
    model, the only one benchmarked with several processes.
    """
    if unknown := [event for event in benchmarks if event not in BENCHMARKS]:
        raise UserError(f"`events` must be of {', '.join(BENCHMARKS)}, but got {unknown[0]!r}")
    for name in names:
        model = networks.benchmark_model(name)
        for event in (e for e in benchmarks if e != "workers" or name == "small"):
            threats = {"pgd": ("Linf:8/255",), "workers": model.threats[:1]}
            counts = {"pgd": model.pgd_images, "workers": WORKER_SCALING_IMAGES}
            count = base.images or min(max_images, counts.get(event, model.images))
            for threat in threats.get(event, model.threats):
                tool_run = replace(base, network=name, images=count, threat=threat)
                if name != "small":
                    tool_run = replace(tool_run, checkpoint=None)
                tools = installed_tools(event)
                yield BenchmarkCase(
                    event, tuple(replace(tool_run, racer=r, warm=event == "pgd") for r in tools)
                )


def run_case(case: BenchmarkCase, repeats: int, progress: Progress) -> list[dict[str, Any]]:
    """Run all tools interleaved, repeatedly; return a row of medians for each."""
    jobs = {
        tool_run.racer: SubprocessJob("buttress.bench.attack_case", asdict(tool_run))
        for tool_run in case.races
    }
    results = run_interleaved(case.title, jobs, repeats, progress)
    return [
        _summarize_results(case, tool_run, [ToolResult(**r) for r in results[tool_run.racer]])
        for tool_run in case.races
        if results[tool_run.racer]
    ]


def _summarize_results(
    case: BenchmarkCase, tool_run: ToolRun, results: Sequence[ToolResult]
) -> dict[str, Any]:
    keys = [key for key in asdict(results[0]) if key != "left"]
    medians = {key: statistics.median(asdict(r)[key] for r in results) for key in keys}
    identity = {
        "event": case.event,
        **asdict(tool_run),
        "title": case.title,
        "left": results[0].left,
    }
    return {
        **identity,
        **medians,
        "repeats": len(results),
        "all_seconds": [r.seconds for r in results],
    }


COLUMNS = (
    "seconds",
    "of the slowest",
    "relative to bare passes",
    "passes per image (F, B)",
    "MB",
    "robust",
    "agreement with reference",
)


def attack_tables(rows: Sequence[dict[str, Any]], level: int = 0) -> Iterator[str]:
    """Markdown table of each case, under a title or a heading of this level."""
    for title in dict.fromkeys(row["title"] for row in rows):
        case_rows = [row for row in rows if row["title"] == title]
        slowest = max(row["seconds"] for row in case_rows)
        reference = next((row for row in case_rows if row["racer"] == REFERENCE), None)
        mark = "#" * level + " " if level else ""
        yield f"\n{mark}{title}, {case_rows[0]['images']} images\n"
        yield "| | " + " | ".join(COLUMNS) + " |"
        yield "| --- |" + " --- |" * len(COLUMNS)
        for row in case_rows:
            cells = (
                f"{row['seconds']:.2f}{_format_setup(row)}",
                f"{row['seconds'] / slowest:.3f}",
                f"{row['seconds'] / row['floor']:.2f}" if row["floor"] else "",
                f"{row['forward']:.0f}, {row['backward']:.0f}" if row["floor"] else "",
                f"{row['memory']:.0f}",
                "" if row["racer"] == "bare passes" else _format_robust_accuracy(row),
                _format_agreement(row, reference),
            )
            yield f"| {row['racer']} | " + " | ".join(cells) + " |"


def _format_setup(row: dict[str, Any]) -> str:
    return f" ({row['preparing']:.2f} of it preparing)" if row.get("preparing") else ""


def _format_robust_accuracy(row: dict[str, Any]) -> str:
    """Robust images, and the 95% interval of robust accuracy."""
    low, high = wilson_interval(round(row["robust"]), row["images"])
    return f"{row['robust']:.0f} ({100 * low:.0f} to {100 * high:.0f}%)"


def _format_agreement(row: dict[str, Any], reference: dict[str, Any] | None) -> str:
    """Fraction of images with the same per-sample result as the reference."""
    if reference is None or row is reference or not all("left" in r for r in (row, reference)):
        return ""
    return f"{1 - len(set(row['left']) ^ set(reference['left'])) / row['images']:.1%}"


def autoattack_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The races with the reference AutoAttack in one short Markdown table.

    A tool of ours that was not measured has no column.
    """
    autoattack_rows = [row for row in rows if row["event"] == "autoattack"]
    measured = {row["racer"] for row in autoattack_rows}
    names = [name for name in ("autoattack", "fast") if f"buttress {name}" in measured]
    columns = ["network, threat", "pyautoattack", *(f"`{n}`" for n in names), "robust images"]
    yield f"| {' | '.join(columns)} |"
    yield "|" + " --- |" * len(columns)
    for title in dict.fromkeys(row["title"] for row in autoattack_rows):
        by_tool = {row["racer"]: row for row in autoattack_rows if row["title"] == title}
        if REFERENCE not in by_tool:
            continue
        base = by_tool[REFERENCE]
        ours = [by_tool[f"buttress {name}"] for name in names]
        label = f"{networks.BENCHMARK_MODELS[base['network']].title}, {base['threat']}"
        times = [f"{r['seconds']:.0f} s ({r['seconds'] / base['seconds']:.2f})" for r in ours]
        robust_counts = ", ".join(f"{r['robust']:.0f}" for r in (base, *ours))
        yield (
            f"| {label} | {base['seconds']:.0f} s | {' | '.join(times)} | "
            f"{robust_counts} of {base['images']} |"
        )
