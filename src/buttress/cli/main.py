"""The `buttress` command: exit codes, errors in one line, interruptions from the first moment.

It imports nothing else of its own before it handles signals: imports take most of the first second.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys

INTERRUPTED = 130  # exit code
INTERRUPTED_MESSAGE = "interrupted; run the same command again to resume"
DELETED_DIRECTORY_MESSAGE = "the current directory was deleted; change to another one"
STDERR_FD = 2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
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


def run(args: list[str] | None = None) -> None:
    """Run a command; an error of the user is one line, never a traceback."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # a search of all packages
    gc.set_threshold(50_000)  # imports make many objects and no garbage
    is_interruptible = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    for number in STOP_SIGNALS if is_interruptible else STOP_SIGNALS[1:]:
        signal.signal(number, exit_at_once)
    from buttress.cli import commands  # noqa: F401 - nothing to clean up if it is interrupted

    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run_cli(args)
    except KeyboardInterrupt:  # a second one, while the first was handled
        code = INTERRUPTED
    for number in STOP_SIGNALS:  # what is left is to end, with this code
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def exit_at_once(*_: object) -> None:
    os.write(STDERR_FD, f"buttress: {INTERRUPTED_MESSAGE}\n".encode())
    os._exit(INTERRUPTED)


def run_cli(args: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 a run failed, 2 usage, 130 interrupted."""
    import click

    from buttress.cli.commands import main
    from buttress.cli.suggestions import explain_usage
    from buttress.errors import ButtressError
    from buttress.system.interrupt import interrupt_on_sigterm

    if is_working_directory_gone():  # torch does not even start there
        return print_error(DELETED_DIRECTORY_MESSAGE, 1)
    try:
        args = sys.argv[1:] if args is None else args
        with interrupt_on_sigterm():
            result: object = main(args=list(args), standalone_mode=False, obj=args)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        example = explain_usage(error) if isinstance(error, click.UsageError) else ""
        error.show()
        if example:
            click.echo(f"Example: {example}", err=True)
        return 2
    except ButtressError as error:
        return print_error(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return print_error(INTERRUPTED_MESSAGE, INTERRUPTED)
    except OSError as error:
        if is_working_directory_gone():
            return print_error(DELETED_DIRECTORY_MESSAGE, 1)
        if error.errno not in FILESYSTEM_ADVICE:
            raise
        file = error.filename2 or error.filename  # the target of a rename
        file_text = f" ({file!r})" if file else ""
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
    import click

    line = "\\n".join(message.splitlines())  # file names may have line breaks; an error is one line
    click.echo(f"buttress: {line}".encode(errors="backslashreplace").decode(), err=True)
    return code


if __name__ == "__main__":
    run()
