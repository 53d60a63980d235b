"""`buttress compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buttress.cli.console import ranged, say, say_json, table
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.comparison import Comparison, Row, Share


class TwoSides(click.Command):
    """A command whose option ``--against`` takes all names up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        inside = False
        for arg in args:
            if arg.startswith("-"):
                inside = arg == "--against"
                spread += [] if inside else [arg]
            else:
                spread += ["--against", arg] if inside else [arg]
        if "--against" in args and "--against" not in spread:
            raise click.UsageError("--against needs the runs of the other side", ctx)
        return super().parse_args(ctx, spread)


@click.command("compare", cls=TwoSides)
@click.argument("runs", nargs=-1, required=True)
@click.option("--against", multiple=True, metavar="RUN ...",
              help="The other side, where each has several seeds.")  # fmt: skip
@click.option("--suite", help="Which evaluation of the runs, if they have several.")
@click.option("--attack", metavar="NAME", help="One attack only, or worst_case.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    runs: tuple[str, ...], against: tuple[str, ...], suite: str | None, attack: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Say whether run A holds better than run B: buttress compare A B.

    RUNS are runs or folders of records. Images are paired; only those that both were judged on
    count. With several seeds: buttress compare A1 A2 A3 --against B1 B2 B3.
    """
    from buttress.comparison import compare
    from buttress.comparison.words import sentences

    if not against and len(runs) != 2:
        raise UserError(
            f"name two runs, or several seeds of each side: A1 A2 --against B1 B2; got {len(runs)}"
        )
    ours, theirs = (runs, against) if against else (runs[:1], runs[1:])
    found = compare(list(ours), list(theirs), suite=suite, attack=attack)
    words = sentences(found)
    if as_json:
        say_json({**found.to_dict(), "words": words})
        return
    say(f"A: {found.a.label}\nB: {found.b.label}")
    say(f"{found.images} shared images, suite {found.suite}\n")
    say(table(_header(found), [_cells(row, found) for row in found.rows]))
    say("")
    for line in words:
        say(line)
    for note in found.notes:
        say(f"note: {note}")


def _header(found: Comparison) -> list[str]:
    split = [] if found.has_seeds else ["bootstrap", "only A", "only B"]
    trust = ["trust"] if found.doubted else []
    return ["attack", "A", "B", "A - B", "95% interval", *split, "p", "p (Holm)", *trust]


def _cells(row: Row, found: Comparison) -> list[str]:
    split = (
        [] if row.bootstrap is None else [_span(row.bootstrap), str(row.only_a), str(row.only_b)]
    )
    return [
        row.name.replace("_", " "),
        _share(row.a),
        _share(row.b),
        f"{100 * row.difference:+.2f}",
        _span(row.interval),
        *split,
        f"{row.p:.2g}",
        f"{row.p_holm:.2g}",
        *([f"{' and '.join(found.doubted)} untrustworthy"] if found.doubted else []),
    ]


def _span(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}"


def _share(share: Share) -> str:
    """``61.2% (58.0 to 64.1)``, over seeds with their standard deviation."""
    spread = "" if share.sd is None else f", sd {100 * share.sd:.1f}"
    return f"{ranged(share.accuracy, share.interval)}{spread}"
