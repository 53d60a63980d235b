"""`buttress search`: which networks of a grid hold best under a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.console import percent, ranged, say, say_json, showing, table
from buttress.cli.runners import runners
from buttress.cli.words import amount

if TYPE_CHECKING:
    from buttress.records.search import Search, Tried


@click.command("search")
@click.argument("search")
@click.option("--scale", default="smoke", show_default=True, help="smoke, mini or paper.")
@click.option("--budget-params", type=float, metavar="N", help="Parameters at most, like 1e6.")
@click.option("--budget-macs", type=float, metavar="N",
              help="Multiply-accumulates per image at most, like 5e7: half the FLOPs.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True,
              help="Of the draw of candidates; added to the seeds of training.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
              help="Where runs and results are; studies and searches share it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@runners
def command(
    search: str, scale: str, budget_params: float | None, budget_macs: float | None, seed: int,
    out: Path, as_json: bool, **how: Any,
) -> int:  # fmt: skip
    """Find the networks of a grid that hold best under a budget; SEARCH is a name or a file.

    All train a little, the best train longer: successive halving on robust validation accuracy. It
    may be stopped at any moment and started again. The test images are not looked at.
    """
    from buttress.records.search import search_file
    from buttress.running import Launch
    from buttress.running.search import PICTURE, carry_search
    from buttress.study import check_scale
    from buttress.study.search import Asked, Budget, load_search

    spec, size = load_search(search), check_scale(scale)
    given = {"parameters": budget_params, "macs": budget_macs}
    chosen = {name: value for name, value in given.items() if value is not None}
    budget = Budget.parse({**spec.budget_at(size).given(), **chosen}, "the budget")
    asked = Asked(spec, size, budget, spec.halving_at(size), seed)
    with showing() as progress:
        found = carry_search(asked, out, Launch(**how), progress)
    file = search_file(out, found.key)
    if as_json:
        files = {"file": str(file), "picture": str(file.with_name(PICTURE))}
        say_json({**files, **found.model_dump(mode="json")})
    else:
        _say(found, file, out)
    return 1 if found.failed else 0


def _say(found: Search, file: Path, out: Path) -> None:
    limits = " and ".join(f"{amount(v)} {name}" for name, v in found.budget.items())
    say(f"{found.title} ({found.scale})\n{found.question}\n")
    inside = f"within {limits}" if limits else "allowed (no budget)"
    say(f"{found.grid} networks in the grid, {found.in_budget} {inside}, {found.drawn} tried\n")
    axes = list(found.ranking[0].labels)
    rungs = [f"rung {number + 1}" for number in range(len(found.rungs))]
    rows = [[str(i + 1), *_row(found, tried)] for i, tried in enumerate(found.ranking)]
    say(table(["", *axes, "parameters", "MACs", *rungs, "fate"], rows) + "\n")
    _say_options(found)
    share = found.flops / found.flops_of_all
    say(f"training took {amount(found.flops, 'FLOP')}, {share:.0%} of what all "
        f"{found.in_budget} would take in full")  # fmt: skip
    for note in found.notes:
        say(f"note: {note}")
    for name, why in found.failed.items():
        say(f"failed: {name}: {why}")
    if found.failed:
        say("`--retry` tries failed runs again")
    best = found.ranking[0]
    if best.fate == "best":
        say(f"the best: {out / 'runs' / best.scores[-1].runs[0]}; it was chosen for its accuracy, "
            "which is too high for that: ask test images with `buttress evaluate`")  # fmt: skip
    say(f"all of it: {file}, picture beside it")


def _row(found: Search, tried: Tried) -> list[str]:
    scores = [percent(score.value) for score in tried.scores[:-1]]
    scores += [ranged(s.value, (s.low, s.high)) for s in tried.scores[-1:]]
    scores += [""] * (len(found.rungs) - len(scores))
    costs = [amount(tried.parameters), amount(tried.macs)]
    return [*tried.labels.values(), *costs, *scores, tried.fate]


def _say_options(found: Search) -> None:
    rows = [
        [o.axis, o.label, str(o.candidates), percent(o.first), str(o.in_full)]
        for o in found.options
    ]
    if rows:
        say(table(["axis", "label", "tried", "mean after rung 1", "trained in full"], rows) + "\n")
