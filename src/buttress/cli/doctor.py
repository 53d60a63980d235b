"""`buttress doctor`."""

from __future__ import annotations

from typing import Any

import click

from buttress.cli.console import (
    format_table,
    format_with_interval,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.evaluate import find_run, load_images
from buttress.cli.options import load_model_argument, model_options
from buttress.errors import UserError


@click.command("doctor")
@click.argument("model_source", metavar="MODEL")
@model_options
@click.option("--data", "dataset", help="A dataset; the run's own if MODEL is a run.")
@click.option("--split", default="test", show_default=True)
@click.option("--limit", default=256, show_default=True, help="The first images, at most 1000.")
@click.option("--threat", help="Such as Linf:8/255; the run's own, or the usual one of the data.")
@click.option("--seed", default=0, show_default=True)
@click.option("--batch-size", default=256, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--strict", is_flag=True, help="Exit with 1 if numbers cannot be trusted.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
def command(
    model_source: str, dataset: str | None, split: str, limit: int, threat: str | None, seed: int,
    batch_size: int, device: str, strict: bool, as_json: bool, **model_options: Any,
) -> int:  # fmt: skip
    """Look for reasons to distrust robustness numbers of MODEL.

    `buttress list sources` shows every way to name a model. The diagnosis of a run is kept in
    it and shown beside its numbers.
    """
    from buttress.evaluation import diagnose

    if limit < 1:
        raise UserError(f"`limit >= 1` must hold, but got limit={limit}")
    run = find_run(model_source, model_options["model"])
    images = load_images(run, dataset, split, None, None)
    images = images.select(range(min(limit, len(images))))
    model = load_model_argument(model_source, model_options, images, device)
    if threat is None and run is not None:
        threat = run.spec.recipe.threat
    with show_progress() as progress:
        diagnosis = diagnose(
            model, images, threat, batch_size=batch_size, seed=seed, progress=progress
        )
    if run is not None:
        diagnosis.save(run.analysis_file("doctor"))
    code = 1 if strict and not diagnosis.trustworthy else 0
    if as_json:
        print_json(diagnosis.to_dict())
        return code
    severities = {f.name: f.severity for f in diagnosis.findings}
    rows = [[c.name, severities.get(c.name, c.state), c.about] for c in diagnosis.checks]
    print_line(format_table(["check", "result", "what it looks for"], rows))
    for finding in diagnosis.findings:
        print_line(f"\n{finding.severity}: {finding.name}\n  {finding.said}\n  {finding.remedy}")
    accuracies = ", ".join(
        f"{name} {format_with_interval(accuracy, diagnosis.interval(name))}"
        for name, accuracy in diagnosis.accuracy.items()
    )
    print_line(
        f"\n{diagnosis.threat} on {diagnosis.images} images of {diagnosis.dataset} "
        f"{diagnosis.split}: {accuracies}"
    )
    print_line(f"verdict: {diagnosis.verdict}")
    return code
