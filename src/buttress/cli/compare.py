"""`buttress compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buttress.cli.console import format_table, format_with_interval, print_json, print_line
from buttress.cli.options import JSON_OPTION
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.results import Comparison, ComparisonRow, SideAccuracy


class CompareCommand(click.Command):
    """Command whose option ``--against`` takes all names up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        expanded: list[str] = []
        after_against = False
        for arg in args:
            if arg.startswith("-"):
                after_against = arg == "--against"
                expanded += [] if after_against else [arg]
            else:
                expanded += ["--against", arg] if after_against else [arg]
        if "--against" in args and "--against" not in expanded:
            raise click.UsageError("--against needs at least one run", ctx)
        return super().parse_args(ctx, expanded)


@click.command("compare", cls=CompareCommand)
@click.argument("runs", nargs=-1, required=True)
@click.option("--against", multiple=True, metavar="RUN ...",
              help="Runs of model B, if A and B have several seeds each.")  # fmt: skip
@click.option("--suite", help="Suite to compare, if the runs have several.")
@click.option("--attack", metavar="NAME", help="Compare this attack only, or worst_case.")
@JSON_OPTION
def command(
    runs: tuple[str, ...], against: tuple[str, ...], suite: str | None, attack: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Test whether two runs differ significantly in accuracy: buttress compare A B.

    RUNS are runs or folders of records. Images are paired; only images that both were evaluated
    on count. With several seeds: buttress compare A1 A2 A3 --against B1 B2 B3.
    """
    from buttress.results import compare
    from buttress.results.comparison import summarize_comparison

    if not against and len(runs) != 2:
        raise UserError(
            "expected two runs, or several seeds of each with --against (A1 A2 --against B1 B2), "
            f"but got {len(runs)}"
        )
    runs_a, runs_b = (runs, against) if against else (runs[:1], runs[1:])
    comparison = compare(list(runs_a), list(runs_b), suite=suite, attack=attack)
    sentences = summarize_comparison(comparison)
    if as_json:
        print_json({**comparison.to_dict(), "words": sentences})
        return
    print_line(f"A: {comparison.a.label}\nB: {comparison.b.label}")
    print_line(f"{comparison.images} shared images, suite {comparison.suite}\n")
    print_line(
        format_table(_header(comparison), [_table_row(row, comparison) for row in comparison.rows])
    )
    print_line("")
    for line in sentences:
        print_line(line)
    for note in comparison.notes:
        print_line(f"note: {note}")


def _header(comparison: Comparison) -> list[str]:
    paired_columns = [] if comparison.has_seeds else ["bootstrap", "only A", "only B"]
    trust = ["trust"] if comparison.untrustworthy_sides else []
    return ["attack", "A", "B", "A - B", "95% interval", *paired_columns, "p", "p (Holm)", *trust]


def _table_row(row: ComparisonRow, comparison: Comparison) -> list[str]:
    paired_cells = (
        []
        if row.bootstrap_interval is None
        else [_format_difference_interval(row.bootstrap_interval), str(row.only_a), str(row.only_b)]
    )
    return [
        row.name.replace("_", " "),
        _format_accuracy(row.a),
        _format_accuracy(row.b),
        f"{100 * row.difference:+.2f}",
        _format_difference_interval(row.interval),
        *paired_cells,
        f"{row.p_value:.2g}",
        f"{row.p_value_holm:.2g}",
        *(
            [f"{' and '.join(comparison.untrustworthy_sides)} not trustworthy"]
            if comparison.untrustworthy_sides
            else []
        ),
    ]


def _format_difference_interval(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}"


def _format_accuracy(accuracy: SideAccuracy) -> str:
    """``61.2% (58.0 to 64.1)``, over seeds with their standard deviation."""
    spread = "" if accuracy.std is None else f", sd {100 * accuracy.std:.1f}"
    return f"{format_with_interval(accuracy.accuracy, accuracy.interval)}{spread}"
