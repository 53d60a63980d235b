"""`buttress search`: the most robust models of a grid within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.checks import check_preset
from buttress.cli.console import (
    format_amount,
    format_percent,
    format_table,
    format_with_interval,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.options import JSON_OPTION, SCALE_OPTION, checked, runner_options

if TYPE_CHECKING:
    from buttress.results.study_result import CandidateResult, SearchResult


@click.command("search")
@click.argument("search", callback=checked(lambda name: check_preset("search", name)))
@SCALE_OPTION
@click.option(
    "--budget-params", type=float, metavar="N", help="Maximum number of parameters, e.g. 1e6."
)
@click.option("--budget-macs", type=float, metavar="N",
              help="Maximum MACs per image, e.g. 5e7 (half the FLOPs).")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True,
              help="Seed of the candidate sample; added to the training seeds.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
              help="Output folder for runs and results; shared runs are reused.")  # fmt: skip
@JSON_OPTION
@runner_options
def command(
    search: str, scale: str | None, budget_params: float | None, budget_macs: float | None,
    seed: int, out: Path, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Search a grid for the most robust models within a budget; SEARCH is a name or YAML file.

    Successive halving on robust validation accuracy: all candidates train briefly, the best train
    longer. Test images are not used. The command can be interrupted and resumed.
    """
    from buttress.results.study_result import search_result_path
    from buttress.studies.runner import RunnerOptions
    from buttress.studies.search import SearchBudget, SearchSettings, load_search
    from buttress.studies.search.run import PLOT_FILE, run_search

    spec = load_search(search)
    scale_name = spec.choose_scale(scale)
    budget_options = {"parameters": budget_params, "macs": budget_macs}
    limits = {name: value for name, value in budget_options.items() if value is not None}
    budget = SearchBudget.parse({**spec.budget_at(scale_name).limits(), **limits}, "the budget")
    settings = SearchSettings(spec, scale_name, budget, spec.halving_at(scale_name), seed)
    with show_progress() as progress:
        result = run_search(settings, out, RunnerOptions(**options), progress)
    file = search_result_path(out, result.key)
    if as_json:
        files = {"file": str(file), "picture": str(file.with_name(PLOT_FILE))}
        print_json({**files, **result.model_dump(mode="json")})
    else:
        _print_search(result, file, out)
    return 1 if result.failed_candidates else 0


def _print_search(result: SearchResult, file: Path, out: Path) -> None:
    from buttress.studies.search.run import PLOT_FILE

    limits = " and ".join(f"{format_amount(v)} {name}" for name, v in result.budget.items())
    print_line(f"{result.title} ({result.scale})\n{result.question}\n")
    budget_text = f"within {limits}" if limits else "allowed (no budget)"
    print_line(
        f"{result.grid_size} models in the grid, {result.in_budget} {budget_text}, "
        f"{result.sampled} sampled\n"
    )
    axes = list(result.candidates[0].labels)
    rungs = [f"rung {number + 1}" for number in range(len(result.rungs))]
    rows = [
        [str(i + 1), *_candidate_row(result, candidate)]
        for i, candidate in enumerate(result.candidates)
    ]
    print_line(format_table(["", *axes, "parameters", "MACs", *rungs, "outcome"], rows) + "\n")
    _print_axis_summaries(result)
    fraction = result.training_flops / result.full_training_flops
    print_line(
        f"training took {format_amount(result.training_flops, 'FLOP')}, {fraction:.0%} of training "
        f"all {result.in_budget} models in full"
    )
    for note in result.notes:
        print_line(f"note: {note}")
    for name, reason in result.failed_candidates.items():
        print_line(f"failed: {name}: {reason}")
    if result.failed_candidates:
        print_line("use --retry to run failed runs again")
    best = result.candidates[0]
    if best.status == "best":
        print_line(
            f"best run: {out / 'runs' / best.scores[-1].run_keys[0]}. Its validation accuracy "
            "is optimistic because it was selected on it; evaluate the run on test "
            "images with `buttress evaluate`"
        )
    print_line(f"result: {file}, figure: {file.with_name(PLOT_FILE)}")


def _candidate_row(result: SearchResult, candidate: CandidateResult) -> list[str]:
    scores = [format_percent(score.robust_accuracy) for score in candidate.scores[:-1]]
    scores += [
        format_with_interval(s.robust_accuracy, (s.low, s.high)) for s in candidate.scores[-1:]
    ]
    scores += [""] * (len(result.rungs) - len(scores))
    costs = [format_amount(candidate.parameters), format_amount(candidate.macs)]
    return [*candidate.labels.values(), *costs, *scores, candidate.status]


def _print_axis_summaries(result: SearchResult) -> None:
    rows = [
        [
            o.axis,
            o.label,
            str(o.candidates),
            format_percent(o.first_rung_accuracy),
            str(o.fully_trained),
        ]
        for o in result.axis_values
    ]
    if rows:
        header = ["axis", "label", "candidates", "mean after rung 1", "fully trained"]
        print_line(format_table(header, rows) + "\n")
