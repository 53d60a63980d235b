"""Results as text and HTML, for terminals and notebooks; colors fit light and dark themes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from buttress.errors import ButtressError
from buttress.results.core import CLEAN, WORST_CASE, AccuracyEstimate

if TYPE_CHECKING:
    from buttress.results.comparison import Comparison
    from buttress.results.diagnosis import Diagnosis
    from buttress.results.evaluation import Evaluation
    from buttress.results.run import Run

BAR_WIDTH, BAR_HEIGHT = 160, 12  # pixels
BAR_COLOR, INTERVAL_COLOR, FRAME_COLOR = "#4c78a8", "#e45756", "#8888"
CELL_STYLE = "text-align:left;padding:2px 12px 2px 0"
WORST_CASE_NAME = "worst-case robust accuracy"


def format_percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def format_accuracy(estimate: AccuracyEstimate) -> str:
    """``51.2% [48.1%, 54.3%]``, with the 95% interval."""
    return f"{format_percent(estimate.accuracy)} {_format_interval(estimate)}"


def _format_interval(estimate: AccuracyEstimate) -> str:
    return f"[{', '.join(map(format_percent, estimate.interval))}]"


def describe_evaluation(evaluation: Evaluation) -> str:
    """The suite, the images, clean and worst-case robust accuracy, on one line."""
    head = f"Evaluation({evaluation.suite!r}, {_describe_images(evaluation)}"
    if not evaluation.records:
        return f"{head})"
    accuracies = [f"{WORST_CASE_NAME} {format_accuracy(evaluation.estimate())}"]
    if CLEAN in evaluation.records:
        accuracies.insert(0, f"clean accuracy {format_accuracy(evaluation.estimate(CLEAN))}")
    remarks = [] if evaluation.is_trustworthy else ["not trustworthy"]
    if warnings := len(evaluation.warnings):
        remarks.append("1 warning" if warnings == 1 else f"{warnings} warnings")
    return f"{head}: {', '.join([*accuracies, *remarks])})"


def _describe_images(evaluation: Evaluation) -> str:
    name = " ".join(filter(None, (evaluation.dataset, evaluation.split)))
    return f"{len(evaluation):,} images" + (f" of {name}" if name else "")


def named_estimates(evaluation: Evaluation) -> list[tuple[str, AccuracyEstimate]]:
    """The rows of a table: each attack, all corruptions together, the worst case."""
    rows = [(name, evaluation.estimate(name)) for name in evaluation.attack_records]
    if evaluation.corruptions is not None:
        rows.append(("corruptions", evaluation.corruptions.estimate))
    return [*rows, (WORST_CASE_NAME, evaluation.estimate())] if evaluation.records else rows


def evaluation_html(evaluation: Evaluation) -> str:
    """A table of accuracies with their 95% intervals and bars, then the warnings."""
    caption = f"{evaluation.suite} on {_describe_images(evaluation)}"
    caption += "" if evaluation.is_trustworthy else " (not trustworthy)"
    rows = [
        [escape(name), format_percent(e.accuracy), _format_interval(e), accuracy_bar(name, e)]
        for name, e in named_estimates(evaluation)
    ]
    table = html_table(["attack", "accuracy", "95% interval", ""], rows)
    notes = "".join(f"<li>{escape(text)}</li>" for text in evaluation.warnings)
    listed = f"<ul>{notes}</ul>" if notes else ""
    return f"<div><b>{escape(caption)}</b>{table}{listed}</div>"


def accuracy_bar(name: str, estimate: AccuracyEstimate) -> str:
    """A bar from 0 to 100% with the interval as a line across it."""
    low, high = (BAR_WIDTH * v for v in estimate.interval)
    middle = BAR_HEIGHT / 2
    label = escape(f"{name}: {format_accuracy(estimate)}", quote=True)
    size = f'width="{BAR_WIDTH}" height="{BAR_HEIGHT}"'
    return (
        f'<svg {size} role="img" aria-label="{label}"><title>{label}</title>'
        f'<rect {size} fill="none" stroke="{FRAME_COLOR}"/>'
        f'<rect width="{BAR_WIDTH * estimate.accuracy:.1f}" height="{BAR_HEIGHT}" '
        f'fill="{BAR_COLOR}"/><line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" '
        f'stroke="{INTERVAL_COLOR}" stroke-width="2"/></svg>'
    )


def comparison_html(comparison: Comparison, sentences: Sequence[str]) -> str:
    """A table of differences with their 95% intervals, then what they say."""
    rows = [
        [
            escape(WORST_CASE_NAME if row.name == WORST_CASE else row.name),
            format_percent(row.a.accuracy),
            format_percent(row.b.accuracy),
            f"{100 * row.difference:+.1f} [{100 * row.interval.low:+.1f}, "
            f"{100 * row.interval.high:+.1f}]",
            f"{row.p_value_holm:.2g}",
        ]
        for row in comparison.rows
    ]
    header = ["attack", "A", "B", "A - B in points, 95% interval", "p (Holm)"]
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    caption = f"A: {comparison.a.label}, B: {comparison.b.label}, {comparison.images:,} images"
    return f"<div><b>{escape(caption)}</b>{html_table(header, rows)}{text}</div>"


def describe_run(run: Run) -> str:
    """What was trained, how far and how well, on one line; the path alone of what is no run."""
    trained, estimates, _ = _read_run(run)
    accuracies = "".join(f", {name} accuracy {format_accuracy(e)}" for name, e in estimates)
    where = f" on {estimates[0][1].n:,} validation images" if estimates else ""
    return f"Run({str(run.path)!r}{trained}{accuracies}{where})"


def run_html(run: Run) -> str:
    """What was trained, bars for the accuracies of the best epoch, and the warnings."""
    trained, estimates, warnings = _read_run(run)
    rows = [
        [name, format_percent(e.accuracy), _format_interval(e), accuracy_bar(name, e)]
        for name, e in estimates
    ]
    header = ["best epoch, validation images", "accuracy", "95% interval", ""]
    table = html_table(header, rows) if rows else ""
    notes = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    listed = f"<ul>{notes}</ul>" if notes else ""
    return f"<div><b>{escape(f'{run.path}{trained}')}</b>{table}{listed}</div>"


def _read_run(run: Run) -> tuple[str, list[tuple[str, AccuracyEstimate]], list[str]]:
    """Text on the training, accuracies of the best epoch, and warnings; empty if unreadable."""
    try:
        spec, state = run.spec, run.state
        summary = run.summary if run.is_trained else {}
    except (ButtressError, OSError):  # a text must not fail where reading the run does
        return "", [], []
    n = summary.get("val_images")
    accuracies = {kind: summary.get(f"best_val_{kind}") for kind in ("clean", "robust")}
    estimates = [
        (kind, AccuracyEstimate.from_counts(value * n, n))
        for kind, value in accuracies.items()
        if value is not None and isinstance(n, int) and n > 0
    ]
    trained = f"{spec.model_name} on {spec.dataset} by {spec.recipe.name}, seed {spec.seed}"
    return f", {trained}, {state}", estimates, summary.get("warnings", [])


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Whether the accuracy can be trusted, then each finding with what to do."""
    rows = [
        [escape(f.severity), escape(f.check), escape(f.message), escape(f.remedy)]
        for f in diagnosis.findings
    ]
    table = html_table(["severity", "check", "finding", "what to do"], rows) if rows else ""
    images = f"{diagnosis.images:,} images of {diagnosis.dataset} {diagnosis.split}"
    caption = f"{diagnosis.trust_level}: {diagnosis.threat} on {images}"
    return f"<div><b>{escape(caption)}</b>{table}</div>"


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the cells of ``rows`` are HTML already."""
    head = "".join(f'<th style="{CELL_STYLE}">{escape(text)}</th>' for text in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL_STYLE}">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
