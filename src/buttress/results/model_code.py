"""Python code of a user's model: its files, their hash, the copy in a run, and who may run it.

A run keeps the files that its model was built from, so that it can be moved. Code in a run is only
executed if a file with the same content was named by this user as ``FILE.py:FUNCTION`` before, or
with `trust_code`: a run that somebody else made never executes anything by itself.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from buttress.errors import UserError
from buttress.system.files import cache_dir, digest, write_bytes

CODE_FOLDER = "model"  # of a run
# Installed packages, also where the model lies beside a copy of their sources.
NOT_COPIED = frozenset({"buttress", "torch", "torchvision", "timm", "numpy"})
_trusted_here: set[str] = set()  # where the cache cannot be written


def is_function_name(name: str) -> bool:
    """Whether a name is written ``file.py:function``."""
    path, sep, _ = name.rpartition(":")
    return bool(sep) and path.endswith(".py")


def short_model_name(name: str) -> str:
    """Name of a model for tables and charts: ``dir/mynet.py:mynet`` becomes ``mynet``.

    A function that is not called like its file keeps the file's name: ``net.build``.
    """
    if not is_function_name(name):
        return name
    location, _, function = name.rpartition(":")
    stem = Path(location).stem
    return function if function == stem else f"{stem}.{function}"


@dataclass(frozen=True)
class ModelCode:
    """A Python file that defines a model, with the files beside it that it imports."""

    file: Path
    function: str
    files: Mapping[str, bytes]  # by path relative to the folder of ``file``

    @cached_property
    def sha256(self) -> str:
        """Hash of all files; it does not depend on where they lie."""
        return digest({name: hashlib.sha256(body).hexdigest() for name, body in self.files.items()})

    @property
    def name_in_run(self) -> str:
        """Name of the model relative to the folder of its run."""
        return f"{CODE_FOLDER}/{self.file.name}:{self.function}"

    def copy_to(self, run_folder: Path) -> None:
        """Write the files into a run, unless they are there."""
        for name, body in self.files.items():
            target = run_folder / CODE_FOLDER / name
            if not target.is_file() or target.read_bytes() != body:
                write_bytes(target, body)


def read_model_code(name: str) -> ModelCode:
    """Read the files of a model named ``file.py:function``; nothing is executed."""
    location, _, function = name.rpartition(":")
    file = Path(location).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"model {name!r}: the file {location} does not exist")
    pending, files = [file], dict[str, bytes]()
    while pending:
        path = pending.pop()
        relative = path.relative_to(file.parent).as_posix()
        if relative not in files:
            files[relative] = path.read_bytes()
            pending += _imported_files(files[relative], file.parent)
    return ModelCode(file, function, files)


def _imported_files(source: bytes, folder: Path) -> Iterator[Path]:
    """Files of the modules and packages in a folder that a source imports by absolute imports."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # importing the file will say so
        return
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level}
    for name in sorted({name.partition(".")[0] for name in names} - NOT_COPIED):
        if (folder / name).is_dir():
            yield from sorted((folder / name).rglob("*.py"))
        elif (folder / f"{name}.py").is_file():
            yield folder / f"{name}.py"


def trust_code(sha256: str) -> None:
    """Remember that this user runs the code with this hash."""
    _trusted_here.add(sha256)
    with contextlib.suppress(OSError):  # a cache that cannot be written
        folder = cache_dir() / "trusted-code"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / sha256).touch()


def is_trusted_code(sha256: str) -> bool:
    return sha256 in _trusted_here or (cache_dir() / "trusted-code" / sha256).is_file()


def check_run_code(run_folder: Path, model: str, sha256: str | None) -> None:
    """Raise `UserError` unless the code that the run's model needs may be executed."""
    if is_function_name(model):
        code = _read_run_code(run_folder, model, sha256)
        if not is_trusted_code(code.sha256):
            raise UserError(
                f"{run_folder} needs the Python code in {code.file}, which you have not run "
                "before; code that comes with a run is never executed by itself. Read it, then "
                f"allow it: `buttress trust {run_folder}`"
            )


def trust_run_code(run_folder: Path, model: str, sha256: str | None) -> ModelCode:
    """Trust the code of a run's model; raise `UserError` if it has none or was changed."""
    if not is_function_name(model):
        raise UserError(f"{run_folder} needs no code of its own: its model is {model}")
    code = _read_run_code(run_folder, model, sha256)
    trust_code(code.sha256)
    return code


def _read_run_code(run_folder: Path, model: str, sha256: str | None) -> ModelCode:
    code = read_model_code(model)
    if sha256 is not None:
        _check_copy(run_folder, code, sha256)
    return code


def _check_copy(run_folder: Path, code: ModelCode, sha256: str) -> None:
    """Raise unless the run's copy is the code it was trained with, and nothing beside it."""
    folder = (run_folder / CODE_FOLDER).resolve()
    if code.file.parent != folder:
        raise UserError(f"{run_folder}: the model's code must be in {folder}, not {code.file}")
    # Anything beside the files could be imported in place of an installed package.
    present = {
        p.relative_to(folder).as_posix()
        for p in folder.rglob("*")
        if not p.is_dir() and "__pycache__" not in p.parts
    }
    if code.sha256 != sha256 or present != set(code.files):
        raise UserError(
            f"{folder} was changed after training: its files must have the hash {sha256[:12]} that "
            "run.json names; restore it, or pass a checkpoint of the run with --model "
            "FILE.py:FUNCTION"
        )
