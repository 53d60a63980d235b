"""`buttress doctor`."""

from __future__ import annotations

from typing import Any

import click

from buttress.cli.console import ranged, say, say_json, showing, table
from buttress.cli.evaluate import images_of, run_of
from buttress.cli.network import model_options, network
from buttress.errors import UserError


@click.command("doctor")
@click.argument("what")
@model_options
@click.option("--data", help="A data set; the run's own if WHAT is a run.")
@click.option("--split", default="test", show_default=True)
@click.option("--limit", default=256, show_default=True, help="The first images, at most 1000.")
@click.option("--threat", help="Such as Linf:8/255; the run's own, or the usual one of the data.")
@click.option("--seed", default=0, show_default=True)
@click.option("--batch-size", default=256, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--strict", is_flag=True, help="Exit with 1 if numbers cannot be trusted.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
def command(
    what: str, data: str | None, split: str, limit: int, threat: str | None, seed: int,
    batch_size: int, device: str, strict: bool, as_json: bool, **said: Any,
) -> int:  # fmt: skip
    """Look for reasons to distrust robustness numbers of WHAT.

    `buttress list sources` shows every way to name a model. The diagnosis of a run is kept in
    it and shown beside its numbers.
    """
    from buttress.evaluation import diagnose

    if limit < 1:
        raise UserError(f"`limit >= 1` must hold, but got limit={limit}")
    run = run_of(what, said["model"])
    images = images_of(run, data, split, None, None)
    images = images.select(range(min(limit, len(images))))
    model = network(what, said, images, device)
    if threat is None and run is not None:
        threat = run.spec.recipe.threat
    with showing() as progress:
        found = diagnose(model, images, threat, batch_size=batch_size, seed=seed, progress=progress)
    if run is not None:
        found.save(run.analysis_file("doctor"))
    code = 1 if strict and not found.trustworthy else 0
    if as_json:
        say_json(found.to_dict())
        return code
    grave = {f.name: f.severity for f in found.findings}
    ended = [[c.name, grave.get(c.name, c.state), c.about] for c in found.checks]
    say(table(["check", "result", "what it looks for"], ended))
    for one in found.findings:
        say(f"\n{one.severity}: {one.name}\n  {one.said}\n  {one.remedy}")
    left = ", ".join(
        f"{name} {ranged(share, found.interval(name))}" for name, share in found.accuracy.items()
    )
    say(f"\n{found.threat} on {found.images} images of {found.dataset} {found.split}: {left}")
    say(f"verdict: {found.verdict}")
    return code
