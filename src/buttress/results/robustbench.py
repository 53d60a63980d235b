"""Leaderboard records in the form of RobustBench (arXiv:2010.09670): one JSON file per model.

The files lie at ``model_info/<dataset>/<threat>/<Name>.json``. Accuracies and eps are text, in
percent and like ``8/255``; unknown values are empty or missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.errors import UserError
from buttress.registry import normalize_name
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NORMS

CORRUPTIONS_LEADERBOARD = "corruptions"
LEADERBOARDS = (*NORMS, CORRUPTIONS_LEADERBOARD)

# Name -> the JSON type, in the order of the published files. The first eleven are in all of them.
FIELD_TYPES: Mapping[str, type] = {
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
REQUIRED_FIELDS = tuple(FIELD_TYPES)[:11]
# Older files call the same numbers by these names.
AUTOATTACK_FIELDS = ("autoattack_acc", "AA")
CORRUPTION_FIELDS = ("corruptions_acc", "corruptions_acc_2d")

# Our datasets with exactly the test images of a leaderboard -> the leaderboard's name for it.
LEADERBOARD_DATASETS = {"cifar10": "cifar10", "cifar100": "cifar100", "imagenet_rb5000": "imagenet"}
MISSING_VALUES = ("", "-", "n/a", "none", "null", "nan")


@dataclass(frozen=True)
class LeaderboardEntry:
    """A published record of a model; accuracies in [0, 1], None where the file has none."""

    id: str  # the name of the file
    dataset: str
    leaderboard: str  # Linf, L2, L1 or corruptions
    threat: str  # "Linf:8/255"; empty for corruptions and where eps is not known
    title: str
    authors: str
    link: str
    venue: str
    architecture: str
    footnote: str
    clean_accuracy: float | None
    robust_accuracy: float | None  # under AutoAttack, or the mean over corruptions
    lowest_reported_accuracy: float | None  # lowest robust accuracy reported by others
    is_unreliable: bool


@dataclass(frozen=True)
class LeaderboardEntries:
    """The records of some files, and the problems in them."""

    entries: tuple[LeaderboardEntry, ...]
    problems: tuple[str, ...]


def leaderboard_dataset(name: str) -> str:
    """Name of a dataset as leaderboards write it, without the path of a folder."""
    name_only = normalize_name(name.partition(":")[0])
    return LEADERBOARD_DATASETS.get(name_only, name_only)


def read_leaderboard_entries(paths: Iterable[Path]) -> LeaderboardEntries:
    """Read the records in files and folders; invalid ones are skipped and reported."""
    rows: list[LeaderboardEntry] = []
    problems: list[str] = []
    for path in map(Path, paths):
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not path.exists():
            raise UserError(
                f"no such file or folder: {path}; --reference takes RobustBench JSON files or a "
                "folder of them"
            )
        if not files:
            problems.append(f"{path} contains no JSON file")
        for file in files:
            row, file_problems = read_leaderboard_file(file, display_path=_display_path(file, path))
            rows += [] if row is None else [row]
            problems += file_problems
    return LeaderboardEntries(tuple(dict.fromkeys(rows)), tuple(problems))


def read_leaderboard_file(
    path: Path, display_path: str
) -> tuple[LeaderboardEntry | None, list[str]]:
    """Read one record; problems start with the name of the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None, [f"{display_path}: not valid JSON, skipped"]
    if not isinstance(content, dict):
        return None, [f"{display_path}: expected one JSON object, skipped"]
    fields = _FieldReader(content)
    board = _leaderboard_of(path, content)
    dataset = normalize_name(fields.read_text("dataset"))
    if not board or not dataset:
        return None, [
            f"{display_path}: expected a key 'dataset' and a parent folder named by the threat "
            f"model ({', '.join(LEADERBOARDS)}), skipped"
        ]
    row = _build_entry(path.stem, dataset, board, fields)
    if row.clean_accuracy is None and row.robust_accuracy is None:
        fields.problems.append("no accuracy found, skipped")
    problems = [f"{display_path}: {text}" for text in fields.problems]
    return (None if row.clean_accuracy is None and row.robust_accuracy is None else row), problems


def _build_entry(name: str, dataset: str, board: str, fields: _FieldReader) -> LeaderboardEntry:
    names = CORRUPTION_FIELDS if board == CORRUPTIONS_LEADERBOARD else AUTOATTACK_FIELDS
    return LeaderboardEntry(
        id=name,
        dataset=dataset,
        leaderboard=board,
        threat="" if board == CORRUPTIONS_LEADERBOARD else fields.read_threat(board),
        title=fields.read_text("name"),
        authors=fields.read_text("authors"),
        link=fields.read_text("link"),
        venue=fields.read_text("venue"),
        architecture=fields.read_text("architecture"),
        footnote=fields.read_text("footnote"),
        clean_accuracy=fields.read_accuracy("clean_acc"),
        robust_accuracy=next(
            (s for n in names if (s := fields.read_accuracy(n)) is not None), None
        ),
        lowest_reported_accuracy=fields.read_accuracy("external"),
        is_unreliable=fields.read_bool("unreliable"),
    )


class _FieldReader:
    """Reads the fields of one file, converts their types and collects problems."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.problems: list[str] = []

    def read_text(self, name: str) -> str:
        value = self.content.get(name)
        if value is None or isinstance(value, (list, dict, bool)):
            if value is not None:
                self._add_problem(name, value, "text")
            return ""
        return " ".join(str(value).split())

    def read_accuracy(self, name: str) -> float | None:
        """Parse a percentage, as text or number, to a fraction."""
        value = self.content.get(name)
        if value is None or (isinstance(value, str) and value.strip().lower() in MISSING_VALUES):
            return None
        try:
            number = float(str(value).strip().removesuffix("%"))
        except ValueError:
            number = math.nan
        if isinstance(value, bool) or not 0 <= number <= 100:
            self._add_problem(name, value, "a percentage from 0 to 100")
            return None
        return number / 100

    def read_bool(self, name: str) -> bool:
        value = self.content.get(name, False)
        if isinstance(value, str) and value.strip().lower() in ("true", "false", ""):
            return value.strip().lower() == "true"
        if not isinstance(value, (bool, type(None))):
            self._add_problem(name, value, "true or false")
        return value is True

    def read_threat(self, norm: str) -> str:
        eps = self.read_text("eps")
        if eps.lower() in MISSING_VALUES:
            return ""
        try:
            return str(Threat.parse(f"{norm}:{eps}"))
        except UserError:
            self._add_problem("eps", self.content["eps"], "a number or a fraction like 8/255")
            return ""

    def _add_problem(self, name: str, value: Any, expected: str) -> None:
        value_text = json.dumps(value, default=str)[:60]
        self.problems.append(
            f"{name!r} must be {expected}, but got {value_text}; treated as missing"
        )


def _leaderboard_of(path: Path, content: Mapping[str, Any]) -> str:
    """The leaderboard of a record: the name of its folder, as no field has the norm."""
    folder = path.resolve().parent.name.removesuffix("_3d")
    if folder in LEADERBOARDS:
        return folder
    return CORRUPTIONS_LEADERBOARD if any(name in content for name in CORRUPTION_FIELDS) else ""


def _display_path(file: Path, root: Path) -> str:
    return file.name if file == root else (Path(root.name) / file.relative_to(root)).as_posix()
