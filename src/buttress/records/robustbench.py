"""Leaderboard records in the form of RobustBench (arXiv:2010.09670): one JSON file per model.

The files lie at ``model_info/<dataset>/<threat>/<Name>.json``. Accuracies and eps are text, in
percent and like ``8/255``; what is not known is empty text or left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.errors import UserError
from buttress.registry import canonical
from buttress.threat import NORMS, Threat

CORRUPTIONS = "corruptions"
BOARDS = (*NORMS, CORRUPTIONS)

# Name -> the JSON type, in the order of the published files. The first eleven are in all of them.
FIELDS: Mapping[str, type] = {
    "link": str,
    "name": str,
    "authors": str,
    "additional_data": bool,
    "number_forward_passes": int,
    "dataset": str,
    "venue": str,
    "architecture": str,
    "eps": str,  # null on the boards of corruptions
    "clean_acc": str,
    "reported": str,
    "autoattack_acc": str,
    "corruptions_acc": str,
    "corruptions_acc_3d": str,
    "corruptions_mce": str,
    "corruptions_mce_3d": str,
    "external": str,
    "footnote": str,
    "unreliable": bool,
}
ALWAYS = tuple(FIELDS)[:11]
# Older files call the same numbers by these names.
AUTOATTACK = ("autoattack_acc", "AA")
CORRUPTION = ("corruptions_acc", "corruptions_acc_2d")

# Our data sets that hold exactly the test images of a board, by the board's name for the data.
DATASETS = {"cifar10": "cifar10", "cifar100": "cifar100", "imagenet_rb5000": "imagenet"}
UNKNOWN = ("", "-", "n/a", "none", "null", "nan")


@dataclass(frozen=True)
class Published:
    """What others published about a model; shares in [0, 1], None where the file has none."""

    id: str  # the name of the file
    dataset: str
    board: str  # Linf, L2, L1 or corruptions
    threat: str  # "Linf:8/255"; empty for corruptions and where eps is not known
    title: str
    authors: str
    link: str
    venue: str
    architecture: str
    footnote: str
    clean: float | None
    robust: float | None  # under AutoAttack, or the mean over corruptions
    external: float | None  # the lowest that anyone found
    is_unreliable: bool


@dataclass(frozen=True)
class Reading:
    """The records of some files, and what was wrong in them."""

    rows: tuple[Published, ...]
    problems: tuple[str, ...]


def board_dataset(name: str) -> str:
    """The name of a data set as leaderboards write it; the path of a folder is left out."""
    plain = canonical(name.partition(":")[0])
    return DATASETS.get(plain, plain)


def read_published(paths: Iterable[Path]) -> Reading:
    """The records in files and folders; what cannot be used is named and left out."""
    rows: list[Published] = []
    problems: list[str] = []
    for path in map(Path, paths):
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not path.exists():
            raise UserError(f"there is no file or folder {path} with published records")
        if not files:
            problems.append(f"{path} holds no JSON file")
        for file in files:
            row, found = read_file(file, place=_place(file, path))
            rows += [] if row is None else [row]
            problems += found
    return Reading(tuple(dict.fromkeys(rows)), tuple(problems))


def read_file(path: Path, place: str) -> tuple[Published | None, list[str]]:
    """One record, and its problems with the name of the file in front."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None, [f"{place} cannot be read as JSON: it is left out"]
    if not isinstance(content, dict):
        return None, [f"{place} must hold one JSON object: it is left out"]
    fields = _Fields(content)
    board = _board(path, content)
    dataset = canonical(fields.text("dataset"))
    if not board or not dataset:
        return None, [
            f"{place} must name its 'dataset' and lie in a folder named by its threat "
            f"({', '.join(BOARDS)}): it is left out"
        ]
    row = _published(path.stem, dataset, board, fields)
    if row.clean is None and row.robust is None:
        fields.problems.append("it has no accuracy: it is left out")
    problems = [f"{place}: {text}" for text in fields.problems]
    return (None if row.clean is None and row.robust is None else row), problems


def _published(name: str, dataset: str, board: str, fields: _Fields) -> Published:
    names = CORRUPTION if board == CORRUPTIONS else AUTOATTACK
    return Published(
        id=name,
        dataset=dataset,
        board=board,
        threat="" if board == CORRUPTIONS else fields.threat(board),
        title=fields.text("name"),
        authors=fields.text("authors"),
        link=fields.text("link"),
        venue=fields.text("venue"),
        architecture=fields.text("architecture"),
        footnote=fields.text("footnote"),
        clean=fields.share("clean_acc"),
        robust=next((s for n in names if (s := fields.share(n)) is not None), None),
        external=fields.share("external"),
        is_unreliable=fields.flag("unreliable"),
    )


class _Fields:
    """Reads the fields of one file in whatever type they come, and keeps what was wrong."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        value = self.content.get(name)
        if value is None or isinstance(value, (list, dict, bool)):
            if value is not None:
                self._wrong(name, value, "text")
            return ""
        return " ".join(str(value).split())

    def share(self, name: str) -> float | None:
        """A percentage in any spelling as a share."""
        value = self.content.get(name)
        if value is None or (isinstance(value, str) and value.strip().lower() in UNKNOWN):
            return None
        try:
            number = float(str(value).strip().removesuffix("%"))
        except ValueError:
            number = math.nan
        if isinstance(value, bool) or not 0 <= number <= 100:
            self._wrong(name, value, "a percentage from 0 to 100")
            return None
        return number / 100

    def flag(self, name: str) -> bool:
        value = self.content.get(name, False)
        if isinstance(value, str) and value.strip().lower() in ("true", "false", ""):
            return value.strip().lower() == "true"
        if not isinstance(value, (bool, type(None))):
            self._wrong(name, value, "true or false")
        return value is True

    def threat(self, norm: str) -> str:
        eps = self.text("eps")
        if eps.lower() in UNKNOWN:
            return ""
        try:
            return str(Threat.parse(f"{norm}:{eps}"))
        except UserError:
            self._wrong("eps", self.content["eps"], "a number or a fraction like 8/255")
            return ""

    def _wrong(self, name: str, value: Any, expected: str) -> None:
        shown = json.dumps(value, default=str)[:60]
        self.problems.append(f"{name!r} must be {expected}, but is {shown}; it is taken as missing")


def _board(path: Path, content: Mapping[str, Any]) -> str:
    """The threat of a record: the folder it lies in, for no field tells the norm."""
    folder = path.resolve().parent.name.removesuffix("_3d")
    if folder in BOARDS:
        return folder
    return CORRUPTIONS if any(name in content for name in CORRUPTION) else ""


def _place(file: Path, root: Path) -> str:
    return file.name if file == root else (Path(root.name) / file.relative_to(root)).as_posix()
