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

# command -> (module, what `--help` says); a module is imported when its command is called.
COMMANDS = {
    "quickstart": ("quickstart", "Train, attack, explain and report on bundled data."),
    "list": ("listing", "List models, attacks, objectives, data sets, recipes, suites ..."),
    "data": ("data", "Download, verify and convert data sets."),
    "train": ("train", "Train a model by a recipe."),
    "finetune": ("finetune", "Go on from trained weights to other images."),
    "evaluate": ("evaluate", "Attack a model with a suite; report the worst case."),
    "compare": ("compare", "Say whether one run holds better than another."),
    "doctor": ("doctor", "Can a robustness number of this model be trusted?"),
    "analyze": ("analyze", "Explain trained models: sparsity, curves, galleries ..."),
    "study": ("study", "Plan, run and report studies: grids of runs that answer a question."),
    "search": ("search", "Find the networks of a grid that hold best under a budget."),
    "bench": ("bench", "Race Buttress against the tools that are installed here."),
    "export": ("export", "Write weights, a model card and leaderboard records for others."),
    "report": ("report", "Write static pages about runs."),
}
ALIASES = {"analyse": "analyze"}


# Errors that another place, or more room, would mend; others are mistakes of ours.
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
    """Which image classifier architectures hold up under attack, and why."""


def run(args: list[str] | None = None) -> None:
    """Runs a command; a mistake of the user's is one line, never a traceback."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(run_cli(args))


def run_cli(args: list[str] | None = None) -> int:
    """The exit code of a command: 0 done, 1 a run failed, 2 usage, 130 interrupted."""
    try:
        result: Any = main(args=args, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except ButtressError as error:
        return print_error(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return print_error("interrupted; run the same command again to go on", 130)
    except OSError as error:
        if error.errno not in FILESYSTEM_ERRNOS:
            raise
        file_text = f" ({error.filename!r})" if error.filename else ""
        message = (
            f"{os.strerror(error.errno)}{file_text}; what was complete is kept. Make room or choose"
        )
        return print_error(f"{message} another place, then run the same command again", 1)


def print_error(message: str, code: int) -> int:
    line = "\\n".join(message.splitlines())  # a name may hold anything; a complaint is one line
    click.echo(f"buttress: {line}".encode(errors="backslashreplace").decode(), err=True)
    return code


if __name__ == "__main__":
    run()
