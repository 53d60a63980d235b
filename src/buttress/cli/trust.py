"""`buttress trust`."""

from __future__ import annotations

from pathlib import Path

import click

from buttress.cli.console import print_json, print_line
from buttress.cli.options import JSON_OPTION


@click.command("trust")
@click.argument("run", type=click.Path(path_type=Path))
@JSON_OPTION
def command(run: Path, as_json: bool) -> None:
    """Allow the Python code of the model of RUN to be executed when the run is used.

    Runs that you trained need no permission. Read the code first: it can do anything that you can.
    """
    from buttress.results.model_code import trust_run_code
    from buttress.results.run import Run

    spec = Run(run).spec
    code = trust_run_code(run, spec.model, spec.model_sha256)
    if as_json:
        print_json({"files": sorted(code.files), "sha256": code.sha256})
        return
    for name in sorted(code.files):
        print_line(str(code.file.parent / name))
    print_line(f"trusted: code with hash {code.sha256}")
