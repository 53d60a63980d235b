"""The directory of a run. Which files exist is its state; writes are atomic."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from buttress.config import short_repr
from buttress.errors import CorruptFileError, UserError
from buttress.results.core import read_record_json, write_record_json
from buttress.results.model_code import read_model_code
from buttress.results.run_spec import RunSpec
from buttress.system.files import digest, safe_file_name, utc_timestamp, write_text
from buttress.system.locks import LOCK_SUFFIX
from buttress.system.progress import Progress, SilentProgress

RunState = Literal["new", "started", "done", "failed"]
CheckpointName = Literal["best", "last"]
CHECKPOINT_NAMES: tuple[CheckpointName, ...] = ("best", "last")
DONE_FILE, ERROR_FILE = "done.json", "error.json"
EVAL_FOLDER = "eval"  # of a run: a folder of records for each suite
NUMERIC_SUMMARY_KEYS = (
    "epochs",
    "best_epoch",
    "best_val_clean",
    "best_val_robust",
    "last_val_clean",
    "last_val_robust",
    "seconds",
    "seconds_here",
    "peak_memory_mb",
)
SELECTED_ON_TEST_WARNING = (
    "the checkpoint was selected on the test set (select_on: test), so its test accuracy is "
    "optimistic; use select_on: val"
)


class RunFailure(NamedTuple):
    """Why the last attempt at a run failed, and which file it was to write."""

    message: str
    file: str | None = None  # relative to the run's folder; None if unknown


class Run:
    """One trained model on disk.

    ``run.json`` has the specification, ``train.jsonl`` one line per epoch, ``best.pt`` and
    ``last.pt`` checkpoints, ``epochs/<n>.pt`` those of every epoch if requested, ``initial.pt`` the
    initial weights if they were given, ``eval/<suite>/<attack>.parquet`` per-sample results,
    ``model/`` the Python files of a user's own model, ``analysis/<name>.json`` results of analyses,
    ``done.json`` the summary of training,
    ``error.json`` why the last attempt failed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        from buttress.results.display import describe_run

        return describe_run(self)

    def _repr_html_(self) -> str:
        from buttress.results.display import run_html

        return run_html(self)

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    @property
    def header(self) -> dict[str, Any]:
        """Everything in ``run.json``: spec, command, versions, time, where weights came from."""
        if not self.exists:
            raise UserError(f"{self.path} is not a run: expected a folder with a run.json")
        return read_record_json(self.path / "run.json")

    @property
    def spec(self) -> RunSpec:
        """What was trained; the file of a user's model is that inside the run."""
        spec = RunSpec.parse(self.header.get("spec"), f"{self.path / 'run.json'}")
        if spec.model_sha256 is None:
            return spec
        return spec.model_copy(update={"model": str(self.path / spec.model)})

    @property
    def is_trained(self) -> bool:
        """Whether training is complete; a later evaluation may have failed."""
        return (self.path / DONE_FILE).is_file()

    @property
    def state(self) -> RunState:
        """State of the run; failed if the last attempt failed, in training or after it."""
        if self.failure is not None:
            return "failed"
        if self.is_trained:
            return "done"
        return "started" if self.exists else "new"

    @property
    def failure(self) -> RunFailure | None:
        """Why the run failed; None if it did not."""
        try:
            content = read_record_json(self.path / ERROR_FILE)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (CorruptFileError, OSError):
            return RunFailure("error.json is unreadable")
        file = content.get("file")
        if file == DONE_FILE and self.is_trained:  # was killed between the two files
            return None
        return RunFailure(str(content.get("message", "")), file if isinstance(file, str) else None)

    def checkpoint(self, name: CheckpointName | Literal["initial"] | int = "best") -> Path:
        """Path of a checkpoint: best or last epoch, the initial weights, or a saved epoch."""
        if isinstance(name, int):
            return self.path / "epochs" / f"{name:04d}.pt"
        return self.path / f"{name}.pt"

    @property
    def kept_epochs(self) -> list[int]:
        """The epochs with saved weights, besides the best and the last."""
        names = (p.stem for p in (self.path / "epochs").glob("*.pt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def open(
        self,
        spec: RunSpec,
        command: str = "",
        category: str = "",
        finetuned_from: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        has_checkpoint: bool = False,
    ) -> None:
        """Start or resume the run; raise `UserError` in the directory of another run.

        Where ``has_checkpoint`` says that a checkpoint of this spec is there, a lost ``run.json``
        is written again.
        """
        try:
            if self.exists:
                self._check_same_spec(spec)
                self._keep_model_code(spec)
                return
        except CorruptFileError as error:  # the checkpoints name the spec that they belong to
            (progress or SilentProgress()).log(f"{error}; writing it again")
        if not self.exists and has_checkpoint:
            (progress or SilentProgress()).log(f"{self.path}/run.json is missing; writing it again")
        elif not self.exists and self.path.exists() and not _is_empty_folder(self.path):
            raise UserError(
                f"{self.path} exists and is not a run; choose an output directory (--out) that is "
                "new or empty"
            )
        fields = spec.model_dump(mode="json")
        if spec.model_sha256 is not None:
            fields["model"] = read_model_code(spec.model).name_in_run
        content = {"spec": fields, "key": spec.key(), "category": category}
        origin = {} if finetuned_from is None else {"finetuned_from": dict(finetuned_from)}
        write_record_json(self.path / "run.json", {**content, **origin, **provenance(command)})
        self._keep_model_code(spec)

    def _keep_model_code(self, spec: RunSpec) -> None:
        if spec.model_sha256 is not None:
            read_model_code(spec.model).copy_to(self.path)

    def _check_same_spec(self, spec: RunSpec) -> None:
        old, new = self.spec.identity(), spec.identity()
        if old != new:
            changed = ", ".join(changed_keys(old, new)[:4])
            raise UserError(
                f"{self.path} already contains a run with other settings ({changed}); "
                "choose another output directory (--out) or delete it"
            )

    @property
    def history(self) -> list[dict[str, Any]]:
        """One entry per finished epoch."""
        path = self.path / "train.jsonl"
        if not path.is_file():
            return []
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            history_digest = digest(rows)
        except (ValueError, RecursionError):
            raise CorruptFileError(f"{path} has a line that is not JSON") from None
        if not all(isinstance(row, dict) for row in rows):
            raise CorruptFileError(f"{path}: every line must be a JSON object with one epoch")
        if self.is_trained and self.summary.get("history") != history_digest:
            raise CorruptFileError(
                f"{path} was changed after training: its digest differs from that in done.json"
            )
        return rows

    def write_history(self, epochs: list[dict[str, Any]]) -> None:
        write_text(self.path / "train.jsonl", "".join(json.dumps(e) + "\n" for e in epochs))

    def finish(self, summary: dict[str, Any]) -> None:
        write_record_json(self.path / DONE_FILE, {**summary, "history": digest(self.history)})
        (self.path / ERROR_FILE).unlink(missing_ok=True)

    def fail(self, message: str, file: Path | None = None) -> None:
        """Record why an attempt failed; ``file`` is what it was to write."""
        name = None if file is None else file.relative_to(self.path).as_posix()
        write_record_json(
            self.path / ERROR_FILE, {"message": message, "file": name, "time": utc_timestamp()}
        )

    def mend(self, files: Iterable[Path]) -> None:
        """Clear a failure to write one of these files, which exist now."""
        failure = self.failure
        names = (file.relative_to(self.path).as_posix() for file in files)
        if failure is None or (self.is_trained if failure.file is None else failure.file in names):
            (self.path / ERROR_FILE).unlink(missing_ok=True)

    @property
    def summary(self) -> dict[str, Any]:
        path = self.path / DONE_FILE
        content = read_record_json(path)
        warnings = content.get("warnings", [])
        if not isinstance(warnings, list) or not all(isinstance(w, str) for w in warnings):
            raise CorruptFileError(f"{path}: `warnings` must be a list of strings")
        for name, value in content.items():
            if name in NUMERIC_SUMMARY_KEYS and not isinstance(value, (int, float, type(None))):
                raise CorruptFileError(
                    f"{path}: `{name}` must be a number, but got {short_repr(value)}"
                )
        return content

    @property
    def caveats(self) -> list[str]:
        """Warnings about accuracies measured on this run's best checkpoint."""
        if self.is_trained:
            return list(self.summary.get("warnings", ()))
        return [SELECTED_ON_TEST_WARNING] if self.spec.recipe.select_on == "test" else []

    def suites(self) -> list[str]:
        """The suites this run was evaluated with."""
        folder = self.path / EVAL_FOLDER
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

    def suite_folder(self, suite: str) -> Path:
        """Folder of a suite's records; a suite in a file is named after the file."""
        name = Path(suite).stem if suite.endswith((".yaml", ".yml")) else suite
        return self.path / EVAL_FOLDER / safe_file_name(name)

    def analyses(self) -> list[str]:
        return sorted(p.stem for p in (self.path / "analysis").glob("*.json"))

    def analysis_file(self, name: str) -> Path:
        return self.path / "analysis" / f"{safe_file_name(name)}.json"


def _is_empty_folder(path: Path) -> bool:
    """Whether a folder has no files, or only the lock that this process holds."""
    return path.is_dir() and all(entry.name == LOCK_SUFFIX for entry in path.iterdir())


def changed_keys(a: Any, b: Any, path: str = "") -> list[str]:
    """Dotted keys in which two JSON values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b})
        return [d for k in keys for d in changed_keys(a.get(k), b.get(k), f"{path}.{k}".strip("."))]
    return [] if a == b else [path or "all"]


PACKAGES = ("buttress", "torch", "timm", "torchvision", "lightning-fabric", "numpy", "scikit-learn")


def provenance(command: str = "") -> dict[str, Any]:
    """Versions, platform, time and command, to store with a record."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": command,
        "time": utc_timestamp(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


CLI_ENTRY_POINT = ("cli", "main.py")  # `python -m buttress.cli.main`, as workers are started

# An absolute path, as a word of its own or behind `folder:` and `key=`; not a URL.
ABSOLUTE_PATH = re.compile(r"(?<![\w./])/(?!/)(?:[^/\s:=,]+/)*(?P<name>[^/\s:=,]+)")
KEEP_PATHS_VARIABLE = "BUTTRESS_KEEP_PATHS"


def shorten_paths(text: str) -> str:
    """Replace absolute paths, which name users and machines, by ``.../NAME``.

    Paths below the current directory become relative to it. With ``BUTTRESS_KEEP_PATHS=1`` in the
    environment the text is kept.
    """
    if os.environ.get(KEEP_PATHS_VARIABLE) == "1":
        return text
    text = text.replace(f"{Path.cwd()}/", "")
    return ABSOLUTE_PATH.sub(r".../\g<name>", text)


def command_line() -> str:
    """The running command, as typed in a shell; absolute paths are shortened."""
    path = Path(sys.argv[0] if sys.argv else "python")
    is_buttress = (
        path.name.startswith(("buttress", "__main__")) or path.parts[-2:] == CLI_ENTRY_POINT
    )
    program = "buttress" if is_buttress else path.name
    return " ".join([program, *map(shorten_paths, sys.argv[1:])])


def find_runs(root: Path) -> list[Run]:
    """All runs below a folder, in order of their paths."""
    if (root / "run.json").is_file():
        return [Run(root)]
    return [Run(p.parent) for p in sorted(root.rglob("run.json"))]
