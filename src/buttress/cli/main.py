"""The `buttress` command."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from buttress import __version__
from buttress.errors import ButtressError

# command -> (module, help text); a module is imported when its command is called.
COMMANDS = {
    "quickstart": ("quickstart", "Train, attack and analyze small models on bundled data."),
    "list": ("listing", "List models, attacks, objectives, datasets, recipes, suites ..."),
    "data": ("data", "Download, verify and convert datasets."),
    "train": ("train", "Train a model with a recipe (standard or adversarial training)."),
    "finetune": ("finetune", "Fine-tune trained weights on another dataset."),
    "evaluate": ("evaluate", "Evaluate clean, robust and worst-case robust accuracy."),
    "compare": ("compare", "Test whether two runs differ significantly."),
    "doctor": ("doctor", "Check whether the robust accuracy of a model can be trusted."),
    "analyze": ("analyze", "Analyze trained models: sparsity, Lipschitz constants, landscapes ..."),
    "study": ("study", "Plan, run and report studies: grids of runs that answer a question."),
    "search": ("search", "Search a grid for the most robust models within a budget."),
    "bench": ("bench", "Benchmark attacks and training against other installed libraries."),
    "export": ("export", "Export weights, a model card and leaderboard records."),
    "report": ("report", "Write an HTML report about runs."),
}
ALIASES = {"analyse": "analyze"}


# Errors of the file system that the user can fix; any other OSError is a bug.
FILESYSTEM_ERRNOS = (
    errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.EEXIST,
    errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM, errno.ENXIO, errno.EINVAL,
)  # fmt: skip


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"buttress.cli.{COMMANDS[name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="buttress")
def main() -> None:
    """Train, attack and compare image classifiers for adversarial robustness."""


def run(args: list[str] | None = None) -> None:
    """Run a command; an error of the user is one line, never a traceback."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(run_cli(args))


def run_cli(args: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 a run failed, 2 usage, 130 interrupted."""
    try:
        args = sys.argv[1:] if args is None else args
        result: Any = main(args=list(args), standalone_mode=False, obj=args)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except ButtressError as error:
        return print_error(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return print_error("interrupted; run the same command again to resume", 130)
    except OSError as error:
        if error.errno not in FILESYSTEM_ERRNOS:
            raise
        file_text = f" ({error.filename!r})" if error.filename else ""
        message = (
            f"{os.strerror(error.errno)}{file_text}; finished work is saved. Free disk space or"
        )
        return print_error(f"{message} choose another folder, then run the same command again", 1)


def print_error(message: str, code: int) -> int:
    line = "\\n".join(message.splitlines())  # file names may have line breaks; an error is one line
    click.echo(f"buttress: {line}".encode(errors="backslashreplace").decode(), err=True)
    return code


if __name__ == "__main__":
    run()
