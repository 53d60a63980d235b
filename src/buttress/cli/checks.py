"""Names and paths that a user typed, checked before torch is imported.

Each check accepts whatever it cannot decide: the part that uses the value has the last word.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from buttress.cli.catalog import catalog_names, catalog_rows
from buttress.errors import DataError, UnknownNameError, UserError
from buttress.registry import (
    close_names_text,
    is_robustbench_name,
    normalize_name,
    robustbench_name_text,
    unknown_name_message,
)
from buttress.system.files import cache_dir

if TYPE_CHECKING:
    from buttress.results.suite_spec import SuiteSpec

PATH_ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".tar", ".bin", ".npz", ".yaml")
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
REMOTE_PREFIXES = ("hf:", "robustbench:")


def check_name(kind: str, plural: str, name: str) -> None:
    """Raise on a name that is not in the catalog."""
    names = catalog_names(plural)
    if not _contains(names, name):
        raise UnknownNameError(unknown_name_message(kind, name, names))


def check_model(name: str, *, is_architecture: bool = False) -> None:
    """Raise on a model that is neither a file or folder that exists nor a known name.

    ``is_architecture`` is for ``--model``, which takes no weights.
    """
    kind, _, rest = name.partition(":")
    path, _, function = name.rpartition(":")
    if path.endswith(".py") and function:
        if not Path(path).expanduser().is_file():
            raise UserError(f"model {name!r}: the file {path} does not exist")
    elif kind == "timm":
        _check_timm_name(rest)
    elif kind == "zoo" and not is_architecture:
        check_name("model", "zoo", name)
    elif name.endswith(".py"):
        raise UserError(
            f"a model in a Python file is written file.py:function, e.g. {name}:build, but got "
            f"{name!r}"
        )
    elif kind == "robustbench" and len(rest.split("/")) != 3:
        raise UserError(
            f"a model of RobustBench is written robustbench:DATA/THREAT/NAME, but got {name!r}; "
            "e.g. robustbench:cifar10/Linf/Carmon2019Unlabeled"
        )
    elif not (name.startswith(REMOTE_PREFIXES) or Path(name).expanduser().exists()):
        _check_registered_model(name, is_architecture)


def _check_timm_name(name: str) -> None:
    architecture = name.partition(".")[0]  # what follows is a tag of pretrained weights
    if architecture in catalog_names("timm"):
        return
    names = catalog_names("timm", exact=True)  # the installed timm may have more
    if architecture not in names:
        raise UnknownNameError(
            f"timm has no model {name!r}{close_names_text(name, names)} `timm.list_models()` "
            "lists all models."
        )


def _check_registered_model(name: str, is_architecture: bool) -> None:
    rows = catalog_rows("model names")
    names = [row["name"] for row in rows if not row["is_pattern"]]
    stems = tuple(row["name"] for row in rows if row["is_pattern"])
    if _contains(names, name) or normalize_name(name).startswith(stems):
        return
    if not is_architecture and ("/" in name or name.endswith(PATH_ENDINGS)):
        raise UserError(
            f"{name} does not exist; MODEL must be a run, a checkpoint, file.py:function, a name "
            "of `buttress list models` or another of `buttress list sources`"
        )
    timm_names = catalog_names("timm")
    choices = [*names, *(f"timm:{n}" for n in timm_names)]
    if is_robustbench_name(name):
        guess = robustbench_name_text(name)
    elif name in timm_names:
        guess = f"; did you mean 'timm:{name}'?"
    else:
        guess = close_names_text(name, names if ":" not in name else choices)
    kinds = "a registered model" if is_architecture else "a file, a run nor a registered model"
    raise UnknownNameError(
        f"{name!r} is {'not' if is_architecture else 'neither'} {kinds}{guess} See "
        "`buttress list models` and `buttress list sources`."
    )


def check_dataset(name: str, option: str = "--data") -> None:
    """Raise on an unknown dataset, and on a folder or file that does not exist."""
    kind, colon, path = name.partition(":")
    if not colon:
        if not _contains(catalog_names("datasets"), name) and Path(name).is_dir():
            raise UserError(
                f"{name!r} is a folder; write {option} folder:{name} to read its images"
            )
        if "/" in name and not Path(name).exists():
            raise UserError(
                f"{option} {name}: there is no such folder; a folder of images is written "
                f"folder:PATH, and `buttress list datasets` has the datasets"
            )
        check_name("dataset", "datasets", name)
        return
    readers = catalog_names("readers")
    if not _contains(readers, kind):
        known = ", ".join(f"{reader}:" for reader in readers)
        raise UnknownNameError(
            f"unknown kind of dataset {kind + ':'!r}{close_names_text(kind, readers)} A path is "
            f"written after one of {known}"
        )
    if kind in ("folder", "npz") and path and not Path(path).expanduser().exists():
        raise UserError(f"{option} {name}: {path} does not exist")


def check_available_dataset(name: str) -> None:
    """Raise on a dataset that does not exist or is not downloaded yet."""
    check_dataset(name)
    tags = {row["name"]: row["tags"].split() for row in catalog_rows("datasets")}
    for known in tags:
        is_named = normalize_name(known) == normalize_name(name)
        if is_named and "download" in tags[known] and not (cache_dir() / known).exists():
            raise DataError(f"{known} is not downloaded; run `buttress data get {known}`")


def check_split(split: str) -> None:
    """Raise on a split that no dataset has."""
    from buttress.results.core import check_split

    check_split(split)


def check_preset(kind: str, name: str) -> None:
    """Raise on a recipe, study or search that is neither bundled nor a file that exists."""
    from buttress.config import RECIPES, SEARCHES, STUDIES

    folder = {"recipe": RECIPES, "study": STUDIES, "search": SEARCHES}[kind]
    if name.endswith((".yaml", ".yml")):
        check_exists(name, f"{kind} file")
    elif ":" not in name or not _contains(folder.names(), name.rpartition(":")[0]):
        folder.path(name)  # raises, with the nearest names


def check_suite(suite: str) -> SuiteSpec:
    """The suite as it is written; raise on unknown suites, attacks, norms and files."""
    from buttress.results.suite_spec import CLEAN, parse_suite
    from buttress.results.surrogate_text import check_surrogate

    if suite.endswith((".yaml", ".yml")):
        check_exists(suite, "suite file")
    attacks = catalog_names("attacks")
    spec = parse_suite(suite, attacks)
    for entry in spec.entries:
        if entry.attack and normalize_name(entry.attack) != CLEAN:
            check_name("attack", "attacks", entry.attack)
        if entry.corruption not in ("", "all"):
            check_name("corruption", "corruptions", entry.corruption)
        if entry.threat:
            check_threat(entry.threat)
        if surrogate := entry.args.get("surrogate"):
            check_surrogate(str(surrogate))
    return spec


def check_threat(threat: str) -> None:
    """Raise on an unknown kind of threat model, and on a size that it cannot have."""
    from buttress.results.suite_spec import DATASET_BUDGET
    from buttress.threats import Threat
    from buttress.threats.core import parse_kind

    kind, _, budget = threat.partition(":")
    if budget in ("", DATASET_BUDGET):
        parse_kind(kind)
    else:
        Threat.parse(threat)


def check_threat_options(
    threat: str | None, eps: str | None, norm: str | None, suite: str | None = None
) -> str | None:
    """The threat model of --threat, or of --eps and --norm; it must fit the suite."""
    from buttress.results.suite_spec import with_threat
    from buttress.threats.arguments import threat_text

    text = threat_text(threat, eps, norm)
    if text is not None:
        check_threat(text)
        if suite is not None:
            with_threat(check_suite(suite), text)
    return text


def check_device(device: str) -> None:
    kind = device.partition(":")[0]
    if kind not in (*DEVICES, "meta"):
        raise UserError(
            f"--device must be one of {', '.join(DEVICES)} (or cuda:1 ...), but got {device!r}; a "
            "GPU is cuda, or mps on a Mac"
        )


def check_run(path: str | Path) -> None:
    """Raise on a run that does not exist."""
    if not Path(path).expanduser().exists():
        raise UserError(f"run {path} does not exist; train one with `buttress train --out {path}`")


def check_exists(path: str | Path, what: str) -> None:
    if not Path(path).expanduser().exists():
        raise UserError(f"{what} {path} does not exist")


def _contains(names: Collection[str], name: str) -> bool:
    return normalize_name(name) in map(normalize_name, names)
