"""Stop commands at single file operations, run them again, and compare every byte.

A process that has imported everything forks for each attempt. In the child, the functions of ``os``
that change files count their calls; at the chosen one the process is killed, half of the bytes are
written before it is killed, or the disk is full from then on. The same command must then end well,
with the files of a run that was not stopped. Clocks stand still, so that records are equal.

    python tests/crash_points.py --table docs/measured/crash-points.md
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import argparse
import builtins
import contextlib
import errno
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

STUDY = """
question: Is it the same after a crash?
grid:
  base:
    model: vit_tiny
    dataset: digits
    train_limit: 32
    recipe: quickstart-standard
    overrides: [epochs=1, validation.limit=8]
  suites: [clean_only.yaml]
  test_limit: 8
  columns: {clean: {metric: clean}}
"""
SEARCH = """
question: Is it the same after a crash?
grid:
  base:
    dataset: digits
    train_limit: 32
    recipe: quickstart-at
    overrides: [epochs=1, validation.limit=8]
  axes: {model: {vit: {model: vit_tiny}, wrn: {model: wrn_tiny}}}
halving: {rungs: 1, eta: 2}
"""
RECIPE = """
epochs: 2
batch_size: 16
objective: {name: standard}
optimizer: {name: sgd, lr: 0.01}
validation: {attack: {name: pgd, args: {steps: 1}}, limit: 8}
threat: Linf:0.1
"""
SUITE = "name: clean_only\nentries: [clean]\n"
DEVICE = ["--device", "cpu"]
RUN_OPTIONS = ["--data", "digits", "--recipe", "recipe.yaml", "--limit", "32", *DEVICE]
TRAIN = ["train", "--model", "vit_tiny", *RUN_OPTIONS, "--out", "run"]
EVALUATE = ["evaluate", "run", "--suite", "clean,pgd:Linf:0.1", "--limit", "8"]
COMMANDS = {
    "train": TRAIN,
    "finetune": ["finetune", "run", *RUN_OPTIONS, "--out", "tuned"],
    "evaluate": EVALUATE,
    "study": ["study", "run", "study.yaml", "--workers", "1", "--retry", *DEVICE],
    "search": ["search", "search.yaml", "--workers", "1", "--retry", *DEVICE],
    "export": ["export", "run", "--to", "exported", "--force"],
    "report": ["report", "run", "--out", "pages"],
    "data get": ["data", "get", "cifar100"],
}
PREPARED = {
    "finetune": [TRAIN],
    "evaluate": [TRAIN],
    "export": [TRAIN],
    "report": [TRAIN, EVALUATE],
}
WATCHED = ("open", "write", "fsync", "replace", "rename", "link", "unlink", "remove", "rmdir",
           "mkdir", "chmod", "symlink", "truncate", "sendfile")  # fmt: skip
NEEDS_SPACE = ("open", "write", "mkdir", "link", "symlink", "sendfile")
TEMPORARY_NAME = re.compile(r"(?<=\.)\w{8}(?=\.(old\.)?part)|(?<=\.lock\.)\w+")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Fault:
    """What happens at operation ``index``: ``kill``, ``half`` (of a write, then kill), ``full``."""

    kind: str
    index: int


@dataclass
class FileOperations:
    """Counts what this process does to the files of a folder, and has one of them fail."""

    folder: Path
    fault: Fault | None = None
    names: list[str] = field(default_factory=list)

    def install(self) -> None:
        for name in WATCHED:
            setattr(os, name, self.watched(name, getattr(os, name)))
        real_open = io.open

        def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_written = set(mode) & set("wax+") and self.is_inside(file)
            return (_pyio.open if is_written else real_open)(file, mode, *args, **kwargs)

        builtins.open = io.open = open_file

    def is_inside(self, file: Any) -> bool:
        with contextlib.suppress(OSError, TypeError, ValueError):
            text = f"/proc/self/fd/{file}" if isinstance(file, int) else os.fspath(file)
            place = Path(os.readlink(text) if isinstance(file, int) else os.path.abspath(text))
            return place.is_relative_to(self.folder)
        return False

    def watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(file: Any, *args: Any, **kwargs: Any) -> Any:
            is_read = name == "open" and not args[0] & WRITING
            if is_read or not (self.is_inside(file) or "dir_fd" in kwargs):
                return real(file, *args, **kwargs)
            index = len(self.names)
            self.names.append(name)
            if self.fault is not None and index >= self.fault.index:
                written = self.fail(name, index, real, file, *args)
                if written is not None:
                    return written
            return real(file, *args, **kwargs)

        return operation

    def fail(self, name: str, index: int, real: Callable[..., Any], *args: Any) -> int | None:
        """Fail, or return how many bytes the disk still took."""
        assert self.fault is not None
        if self.fault.kind == "full":
            if name == "write" and index == self.fault.index and len(args[1]) > 1:
                return int(real(args[0], bytes(args[1])[: len(args[1]) // 2]))
            if name in NEEDS_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif index == self.fault.index:
            if self.fault.kind == "half":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return None


@dataclass
class Attempt:
    """A command that was stopped, and what was wrong with it afterwards."""

    fault: str
    operation: str
    problem: str = ""


@dataclass
class CommandResult:
    """How many operations a command has, and what became of it when it was stopped at them."""

    command: str
    operations: int
    attempts: list[Attempt]
    states: int  # different ones that the attempts left

    @property
    def problems(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.problem]


def stop_meters() -> None:
    """Have clocks and the meter of memory say the same in every process."""
    from buttress.results import run as runs

    ticks = itertools.count()
    time.perf_counter = lambda: next(ticks) * 1e-9
    resource.getrusage = lambda _: SimpleNamespace(ru_maxrss=0)  # type: ignore[assignment,return-value]
    runs.utc_timestamp = lambda: "2000-01-01T00:00:00+00:00"  # type: ignore[attr-defined]


def run_forked(
    args: Sequence[str], folder: Path, fault: Fault | None = None
) -> tuple[int, str, list[str]]:
    """Run a command in a forked process: exit code, standard error, names of its operations."""
    from buttress.cli.main import run_cli

    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.chdir(folder)
            handle = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.environ["BUTTRESS_CACHE"] = str(folder / "cache")
            stop_meters()
            operations = FileOperations(folder, fault)
            operations.install()
            code = run_cli(list(args))
            content = {"operations": operations.names, "modules": list(sys.modules)}
            log.with_suffix(".json").write_text(json.dumps(content))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    names = log.with_suffix(".json")
    found = json.loads(names.read_text()) if names.exists() else {}
    names.unlink(missing_ok=True)
    for module in found.get("modules", []):  # imported once, not in every child
        if module not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    return code, log.read_text(errors="replace"), found.get("operations", [])


def tree(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def state(folder: Path) -> str:
    """What a stopped command left; names of temporary files and holders of locks do not matter."""
    entries = []
    for path in sorted(folder.rglob("*")):
        name = TEMPORARY_NAME.sub("", path.relative_to(folder).as_posix())
        is_lock = path.suffix in (".lock", ".guard") or ".lock." in path.name
        is_read = path.is_file() and not is_lock
        content = hashlib.sha256(path.read_bytes()).hexdigest() if is_read else path.is_dir()
        entries.append([name, content])
    return json.dumps(sorted(entries, key=str))


def prepare(command: str, folder: Path) -> None:
    """A folder with what the command needs."""
    folder.mkdir(parents=True)
    files = {
        "study.yaml": STUDY,
        "search.yaml": SEARCH,
        "recipe.yaml": RECIPE,
        "clean_only.yaml": SUITE,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    for args in PREPARED.get(command, []):
        code, said, _ = run_forked(args, folder)
        assert code == 0, said


def points(operations: Sequence[str], sample: int | None) -> list[Fault]:
    """All faults, or as many as asked for, evenly spread. Writes in a row count as one."""
    steps = [
        (index, name)
        for index, name in enumerate(operations)
        if not (name == "write" and operations[index - 1] == "write")
    ]
    faults = [Fault("kill", index) for index, _ in steps]
    faults += [Fault("half", index) for index, name in steps if name == "write"]
    faults += [Fault("full", index) for index, name in steps if name in NEEDS_SPACE]
    if sample is None or sample >= len(faults):
        return faults
    return [faults[round((k + 0.5) * len(faults) / sample - 0.5)] for k in range(sample)]


def stop_and_repeat(
    args: Sequence[str],
    start: Path,
    fault: Fault,
    expected: dict[str, str],
    repeated: dict[str, str],
) -> str:
    """What was wrong with a command that was stopped once and run again; empty if nothing.

    Faults that leave the same files, whose states are in ``repeated``, are repeated once.
    """
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        folder = Path(name).resolve() / "at"
        shutil.copytree(start, folder)
        code, said, _ = run_forked(args, folder, fault)
        if code not in ((1, 2) if fault.kind == "full" else (-signal.SIGKILL,)):
            return f"stopped with exit code {code}: {said[-600:]}"
        if "Traceback" in said:
            return f"a traceback: {said[-1500:]}"
        key = state(folder)
        if key not in repeated:
            repeated[key] = repeat(args, folder, expected)
        return repeated[key]


def repeat(args: Sequence[str], folder: Path, expected: dict[str, str]) -> str:
    """What is wrong after the same command ran again; empty if nothing."""
    code, said, _ = run_forked(args, folder)
    if code != 0:
        return f"run again, exit code {code}: {said[-600:]}"
    found = tree(folder)
    changed = [k for k in sorted({*found, *expected}) if found.get(k) != expected.get(k)]
    return f"other files: {changed}" if changed else ""


def check(command: str, sample: int | None = None) -> CommandResult:
    """Stop a command at all its operations, or at a sample of them."""
    args = COMMANDS[command]
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        root = Path(name).resolve()
        prepare(command, root / "start")
        shutil.copytree(root / "start", root / "whole")
        code, said, operations = run_forked(args, root / "whole", Fault("kill", sys.maxsize))
        assert code == 0, f"{command}: {said}"
        expected = tree(root / "whole")
        attempts, repeated = [], dict[str, str]()
        for fault in points(operations, sample):
            problem = stop_and_repeat(args, root / "start", fault, expected, repeated)
            label = f"{fault.index} {operations[fault.index]}"
            attempts.append(Attempt(fault.kind, label, problem))
            if problem:
                print(command, fault, operations[fault.index], problem, file=sys.stderr, flush=True)
    return CommandResult(command, len(operations), attempts, len(repeated))


@contextlib.contextmanager
def small_downloads() -> Iterator[None]:
    """Datasets of a few images, downloaded from a folder."""
    from buttress.data.datasets import cifar
    from small_sets import cifar100_archive, replaced_md5

    with (
        tempfile.TemporaryDirectory(prefix="crash-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        archive = cifar100_archive(Path(name))
        patch.setattr(cifar, "CIFAR100", replaced_md5(cifar.CIFAR100, archive))
        patch.setattr(cifar, "NUM_VAL", 10)

        def download(url: str, path: Path, progress: object) -> Path:
            return Path(shutil.copyfile(archive, path))

        patch.setattr(cifar, "download", download)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--sample", type=int, help="faults per command; all by default")
    parser.add_argument("--table", type=Path, help="write a table of the results")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    for module in (
        "analysis",
        "evaluation",
        "export",
        "report",
        "studies",
        "studies.runner",
        "training",
    ):
        __import__(f"buttress.{module}")
    with small_downloads():
        results = [check(command, options.sample) for command in options.commands]
    print(json.dumps([asdict(result) for result in results]))
    if options.table:
        options.table.write_text(table(results))
    sys.exit(any(result.problems for result in results))


def table(results: Sequence[CommandResult]) -> str:
    header = (
        "command",
        "file operations",
        "killed",
        "killed amid a write",
        "disk full",
        "states left",
        "differ",
    )
    lines = [f"| {' | '.join(header)} |", "| --- |" + 6 * " ---: |"]
    for result in results:
        counts = [
            sum(a.fault == kind for a in result.attempts) for kind in ("kill", "half", "full")
        ]
        numbers = [result.operations, *counts, result.states, len(result.problems)]
        lines.append(f"| `{result.command}` | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
