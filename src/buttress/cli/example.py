"""`buttress example`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from buttress.cli.console import print_json, print_line
from buttress.cli.options import JSON_OPTION
from buttress.errors import UserError
from buttress.system.files import write_bytes


@click.command("example")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Output folder.")
@JSON_OPTION
def command(name: str, out: Path, as_json: bool) -> None:
    """Write the example NAME to a Python file: mynet, a model of your own to start from."""
    files = {path.stem: path for path in sorted(examples_folder().glob("*.py"))}
    if name not in files:
        raise UserError(f"there is no example {name!r}; there are: {', '.join(files)}")
    target = out / f"{name}.py"
    content = files[name].read_bytes()
    if target.exists() and target.read_bytes() != content:
        raise UserError(f"{target} exists and is not the example; choose another folder with --out")
    write_bytes(target, content)
    if as_json:
        print_json({"file": str(target)})
    else:
        print_line(f"example: {target}")


def examples_folder() -> Path:
    """The examples: in the installed package, or in the repository beside the sources."""
    installed = Path(str(resources.files("buttress"))) / "examples"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "examples"
