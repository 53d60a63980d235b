"""`buttress doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from buttress.cli.checks import check_threat_options
from buttress.cli.console import (
    format_table,
    format_with_interval,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.evaluate import check_data_is_named, find_run, load_images
from buttress.cli.options import (
    DEVICE_OPTION,
    JSON_OPTION,
    MODEL_ARGUMENT,
    checked,
    image_options,
    load_model_argument,
    model_options,
    seed_and_batch_options,
    threat_options,
)
from buttress.errors import UserError
from buttress.results.surrogate_text import check_surrogate
from buttress.threats.norm_ball import find_norm

if TYPE_CHECKING:
    from buttress.results.diagnosis import Diagnosis


@click.command("doctor")
@MODEL_ARGUMENT
@model_options
@image_options
@click.option("--limit", default=256, show_default=True, help="Number of images, at most 1000.")
@threat_options
@seed_and_batch_options
@DEVICE_OPTION
@click.option("--adapt", is_flag=True,
              help="Also run the attack that the findings call for: averaged passes, a surrogate "
              "or queries, a margin loss, a joint loss where the last output rejects "
              "images.")  # fmt: skip
@click.option("--surrogate", callback=checked(check_surrogate), metavar="STAND_IN",
              help="Stand-in for the backward pass of --adapt: FILE.py:FUNCTION, or "
              "SUBMODULE=identity (default: identity where gradients stop).")  # fmt: skip
@click.option(
    "--strict", is_flag=True, help="Exit with code 1 if the robust accuracy cannot be trusted."
)
@JSON_OPTION
def command(
    model_source: str, dataset: str | None, split: str, limit: int, threat: str | None,
    eps: str | None, norm: str | None, seed: int, batch_size: int, device: str, adapt: bool,
    surrogate: str | None, strict: bool, as_json: bool, **model_options: Any,
) -> int:  # fmt: skip
    """Check whether the robust accuracy of MODEL can be trusted.

    `buttress list sources` shows every way to name a model. The diagnosis of a run is saved in
    the run and shown with its results.
    """
    threat = check_threat_options(threat, eps, norm)
    if limit < 1:
        raise UserError(f"--limit must be at least 1, but got {limit}")
    if surrogate is not None and not adapt:
        raise UserError("--surrogate is for the adaptive attack: add --adapt")
    run = find_run(model_source, model_options["model"])
    check_data_is_named(dataset, run)

    from buttress.evaluation import diagnose

    images = load_images(run, dataset, split, None, None)
    model = load_model_argument(model_source, model_options, images, device)
    if threat is None and run is not None:
        trained = run.spec.recipe.threat or ""  # other kinds are diagnosed in Linf
        threat = trained if find_norm(trained.partition(":")[0]) else None
    with show_progress() as progress:
        diagnosis = diagnose(
            model, images, threat, batch_size=batch_size, seed=seed, limit=limit,
            adapt=adapt, surrogate=surrogate, progress=progress,
        )  # fmt: skip
    if run is not None:
        diagnosis.save(run.analysis_file("doctor"))
    code = 1 if strict and not diagnosis.is_trustworthy else 0
    if as_json:
        print_json(diagnosis.to_dict())
        return code
    severities = {f.check: f.severity for f in diagnosis.findings}
    rows = [[c.name, severities.get(c.name, c.outcome), c.description] for c in diagnosis.checks]
    print_line(format_table(["check", "result", "description"], rows))
    for finding in diagnosis.findings:
        print_line(
            f"\n{finding.severity}: {finding.check}\n  {finding.message}\n  {finding.remedy}"
        )
    accuracies = ", ".join(
        f"{name} {format_with_interval(accuracy, diagnosis.interval(name))}"
        for name, accuracy in diagnosis.accuracy.items()
    )
    print_line(
        f"\n{diagnosis.threat} on {diagnosis.images} images of {diagnosis.dataset} "
        f"{diagnosis.split}: {accuracies}"
    )
    if adapt:
        _print_adaptive(diagnosis)
    print_line(f"result: {diagnosis.trust_level}")
    return code


def _print_adaptive(diagnosis: Diagnosis) -> None:
    """Print robust accuracy before and after the adaptive attack."""
    if diagnosis.adaptive is None:
        print_line("adaptive attack: no finding calls for one")
        return
    print_line(diagnosis.adaptive.summary(diagnosis.images))
    for note in diagnosis.adaptive.notes:
        print_line(f"note: {note}")
