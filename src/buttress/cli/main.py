"""The `buttress` command."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from typing import Any

import click

from buttress import __version__
from buttress.errors import ButtressError
from buttress.system.interrupt import interrupt_on_sigterm

INTERRUPTED = 130  # exit code

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


FREE_SPACE = "free disk space"
OTHER_FOLDER = "choose a folder that you may write to"
MOVE_AWAY = "move away the file that is where a folder must be, or the reverse"
# What to do about errors of the file system; any other OSError is a bug.
FILESYSTEM_ADVICE = {
    errno.ENOSPC: FREE_SPACE, errno.EDQUOT: FREE_SPACE, errno.EFBIG: FREE_SPACE,
    errno.EROFS: OTHER_FOLDER, errno.EACCES: OTHER_FOLDER, errno.EPERM: OTHER_FOLDER,
    errno.ENOTDIR: MOVE_AWAY, errno.EEXIST: MOVE_AWAY, errno.EISDIR: MOVE_AWAY,
    errno.ENOTEMPTY: MOVE_AWAY, errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "choose another folder", errno.ENXIO: "choose another folder",
    errno.EINVAL: "choose another folder", errno.EIO: "check the disk",
    errno.ESTALE: "mount the folder again",
}  # fmt: skip


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
    try:
        code = run_cli(args)
    except KeyboardInterrupt:  # a second one, while the first was handled
        code = INTERRUPTED
    for number in (signal.SIGINT, signal.SIGTERM):  # what is left is to end, with this code
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def run_cli(args: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 a run failed, 2 usage, 130 interrupted."""
    try:
        args = sys.argv[1:] if args is None else args
        with interrupt_on_sigterm():
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
        return print_error("interrupted; run the same command again to resume", INTERRUPTED)
    except OSError as error:
        if is_working_directory_gone():
            return print_error("the current directory was deleted; change to another one", 1)
        if error.errno not in FILESYSTEM_ADVICE:
            raise
        file_text = f" ({error.filename!r})" if error.filename else ""
        advice = f"{FILESYSTEM_ADVICE[error.errno]}, then run the same command again"
        message = f"{os.strerror(error.errno)}{file_text}; finished work is saved. To resume, "
        return print_error(message + advice, 1)


def is_working_directory_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def print_error(message: str, code: int) -> int:
    line = "\\n".join(message.splitlines())  # file names may have line breaks; an error is one line
    click.echo(f"buttress: {line}".encode(errors="backslashreplace").decode(), err=True)
    return code


if __name__ == "__main__":
    run()
