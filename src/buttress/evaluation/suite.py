"""Suites: named lists of attacks and corruptions. A suite says what the worst case is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from buttress.attacks.core import ATTACKS
from buttress.config import PresetFolder, Spec, short_repr
from buttress.data import Dataset
from buttress.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt_dataset
from buttress.data.corruptions.dataset import CORRUPTION_VERSION
from buttress.errors import UserError
from buttress.registry import normalize_name
from buttress.results.attack_record import CORRUPTION_ATTACK, OFFICIAL_SUFFIX
from buttress.system.files import safe_file_name
from buttress.threats.norm_ball import NORMS, Norm, Threat, parse_eps, parse_norm

CORRUPTIONS_ENTRY, ALL_CORRUPTIONS = "corruptions", "all"
CORRUPTION_SEED = 0  # corrupted images are a data set: the seed of the attacks does not change them


def parse_corruption(text: str) -> dict[str, Any]:
    """``corruptions``, ``corruptions:3``, ``corruption:fog`` or ``corruption:fog:3``."""
    prefix, *fields = text.split(":")
    name = (
        ALL_CORRUPTIONS
        if normalize_name(prefix) == CORRUPTIONS_ENTRY
        else fields.pop(0)
        if fields
        else ""
    )
    severity = fields.pop(0) if fields else None
    if not name or fields or (severity is not None and not severity.isdigit()):
        raise UserError(
            "corruptions are written corruption:fog:3, corruption:fog, corruptions or "
            f"corruptions:3, but got {text!r}"
        )
    return {CORRUPTION_ATTACK: name, "severity": None if severity is None else int(severity)}


def corruption_names(name: str) -> list[str]:
    """The corruptions that a name stands for: the 15 common ones, or one of any kind."""
    if normalize_name(name) == ALL_CORRUPTIONS:
        return CORRUPTIONS.names("common")
    return [CORRUPTIONS.entry(name).name]


def load_corrupted_images(data: Dataset, corruption: str, severity: int) -> Dataset:
    """The images of a data set, corrupted: the official ones where they are found."""
    return corrupt_dataset(data, corruption, severity, seed=CORRUPTION_SEED)


def corruption_source(data: Dataset, corruption: str, severity: int) -> str:
    """What tells a record of official images from one of ours, and ours from older ones."""
    name = load_corrupted_images(data, corruption, severity).name
    return name if name.endswith(OFFICIAL_SUFFIX) else f"{name} version {CORRUPTION_VERSION}"


CLEAN = "clean"
MAX_NAME_LENGTH = 100  # characters
DATASET_BUDGET = (
    "data"  # in place of an eps or of a data set's budgets: those of the data set itself
)
OTHER_DATASETS = "others"  # in place of a data set: all that are not named


class SuiteEntrySpec(Spec):
    """One line of a suite: an attack with its threat, or corruptions.

    A threat without eps takes the budget that the suite has for the data set, or that of the data
    set where the suite has none; ``L2:data`` always takes that of the data set.
    """

    name: str = ""
    attack: str = ""
    threat: str = ""
    args: dict[str, Any] = Field(default_factory=dict)
    corruption: str = ""  # a name, or ``all`` for the 15 common ones
    severity: int | None = None  # 1 to 5; all five if not given

    @model_validator(mode="after")
    def _check_kind(self) -> SuiteEntrySpec:
        if bool(self.attack) == bool(self.corruption):
            raise ValueError("an entry needs either `attack` or `corruption`")
        if self.corruption and (self.threat or self.args):
            raise ValueError("a corruption has no `threat` and no `args`")
        if self.severity is not None and (not self.corruption or self.severity not in SEVERITIES):
            raise ValueError(f"`severity` is for corruptions, 1 to 5, but got {self.severity}")
        return self

    @property
    def display_name(self) -> str:
        """What the entry is called in a list of suites."""
        if not self.corruption:
            return self.name or f"{self.attack} {self.threat}".strip()
        each = "" if self.severity is None else f":{self.severity}"
        return (
            f"{CORRUPTIONS_ENTRY}{each}"
            if self.corruption == ALL_CORRUPTIONS
            else f"{self.corruption}{each}"
        )


def parse_entry(text: str) -> dict[str, Any]:
    """``clean``, ``pgd-linf``, ``pgd:L2``, ``pgd:L2:0.5``, ``corruption:fog:3`` ... -> an entry."""
    prefix, _, threat = text.partition(":")
    if normalize_name(prefix) in (CORRUPTION_ATTACK, CORRUPTIONS_ENTRY):
        return parse_corruption(text)
    stem, _, tail = prefix.rpartition("-")
    if not threat and stem and normalize_name(tail) in {normalize_name(n) for n in NORMS}:
        return {"name": text, "attack": stem, "threat": parse_norm(tail)}
    return {"name": text, "attack": prefix, "threat": threat}


def _parse_budgets(raw: Any) -> Any:
    """Norms and eps in any usual spelling."""
    if not isinstance(raw, Mapping):
        return raw
    return {
        name: {parse_norm(n): parse_eps(e) for n, e in row.items()}
        if hasattr(row, "items")
        else row
        for name, row in raw.items()
    }


SuiteEntryField = Annotated[
    SuiteEntrySpec, BeforeValidator(lambda v: parse_entry(v) if isinstance(v, str) else v)
]
BudgetsField = Annotated[
    dict[str, dict[Norm, float] | Literal["data"]],
    BeforeValidator(_parse_budgets),
]


class SuiteSpec(Spec):
    """What a suite file holds."""

    name: str = ""
    about: str = ""
    source: str = ""
    mode: Literal["table", "worst_case"] = "table"  # worst_case: a broken image is left alone
    corruptions_count: bool = True  # in the worst case
    budgets: BudgetsField = Field(default_factory=dict)  # data set -> norm -> eps, if not its own
    entries: tuple[SuiteEntryField, ...] = Field(min_length=1)

    @property
    def entry_names(self) -> str:
        """The names of its entries, in order."""
        return ", ".join(line.display_name for line in self.entries)


class SuiteEntry(NamedTuple):
    """One attack or corruption of a suite, resolved for a data set."""

    name: str
    attack: str
    threat: Threat | None
    args: Mapping[str, Any]
    in_worst_case: bool = True  # in the worst case

    @property
    def is_corruption(self) -> bool:
        return self.attack == CORRUPTION_ATTACK


SUITES = PresetFolder("suite", "buttress.evaluation", "suites")


def list_suites() -> list[str]:
    return SUITES.names()


def load_suite(suite: str | Path | Sequence[str] | SuiteSpec) -> SuiteSpec:
    """A suite by name, from a YAML file, or from a list of entries."""
    if isinstance(suite, SuiteSpec):
        return suite
    if not isinstance(suite, (str, Path)):
        return SuiteSpec.parse({"name": "custom", "entries": list(suite)}, "suite")
    location, raw = SUITES.load(suite)
    if isinstance(raw, list):
        raw = {"name": Path(suite).stem, "entries": raw}
    if not isinstance(raw, dict):
        raise UserError(f"{location}: a suite is a list of attacks, but got {type(raw).__name__}")
    return SuiteSpec.parse(raw, location)


def resolve_suite(
    spec: SuiteSpec, budgets: Mapping[Norm, float], dataset: str = ""
) -> list[SuiteEntry]:
    """The entries of a suite for a data set, clean first; names and arguments are tried."""
    entries = [SuiteEntry(CLEAN, CLEAN, None, {})]
    for entry_spec in spec.entries:
        if entry_spec.corruption:
            resolved = _corruption_entries(entry_spec, spec.corruptions_count)
        elif normalize_name(entry_spec.attack) == CLEAN:
            resolved = []
        else:
            resolved = _attack_entries(spec, entry_spec, budgets, dataset)
            if entry_spec.threat.endswith(
                f":{DATASET_BUDGET}"
            ):  # where both budgets are one, once is enough
                existing = [(e.attack, e.threat, e.args) for e in entries]
                resolved = [e for e in resolved if (e.attack, e.threat, e.args) not in existing]
        for entry in resolved:
            if entry.name in [e.name for e in entries]:
                raise UserError(
                    f"suite {spec.name!r} has two entries named {entry.name!r}; name one of them"
                )
            entries.append(entry)
    return entries


def _corruption_entries(line: SuiteEntrySpec, in_worst_case: bool) -> list[SuiteEntry]:
    severities = SEVERITIES if line.severity is None else (line.severity,)
    names = corruption_names(line.corruption)
    pairs = [(name, severity) for name in names for severity in severities]
    return [
        SuiteEntry(
            _entry_name(line.name) if line.name and len(pairs) == 1 else f"{name}-{severity}",
            CORRUPTION_ATTACK,
            None,
            {"corruption": name, "severity": severity},
            in_worst_case,
        )
        for name, severity in pairs
    ]


def _attack_entries(
    spec: SuiteSpec, line: SuiteEntrySpec, budgets: Mapping[Norm, float], dataset: str
) -> list[SuiteEntry]:
    ATTACKS.create(line.attack, line.args)
    threat = _entry_threat(spec, line, budgets, dataset)
    name = _entry_name(line.name or f"{line.attack}-{threat.norm.lower()}")
    return [SuiteEntry(name, line.attack, threat, line.args)]


def _entry_name(name: str) -> str:
    """The name as a file can have it: two that differ in a slash only are the same."""
    if not name.strip(".") or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise UserError(
            f"the name of an entry must have 1 to {MAX_NAME_LENGTH} characters that can be "
            f"printed, but got {short_repr(name)}"
        )
    return safe_file_name(name)


def _entry_threat(
    spec: SuiteSpec, line: SuiteEntrySpec, budgets: Mapping[Norm, float], dataset: str
) -> Threat:
    if not line.threat:
        raise UserError(
            f"attack {line.attack!r} needs a threat: write {line.attack}-linf or "
            f"{line.attack}:Linf:8/255"
        )
    norm, sep, eps = line.threat.partition(":")
    if sep and eps != DATASET_BUDGET:
        return Threat.parse(line.threat)
    if not sep and spec.budgets:
        budgets = _suite_budgets(spec, budgets, dataset, parse_norm(norm))
    return Threat(parse_norm(norm), budgets[parse_norm(norm)])


def _suite_budgets(
    spec: SuiteSpec, budgets: Mapping[Norm, float], dataset: str, norm: Norm
) -> Mapping[Norm, float]:
    """The budgets that the suite has for a data set; an error where it has none."""
    by_dataset = {normalize_name(name): row for name, row in spec.budgets.items()}
    budgets_of_dataset = by_dataset.get(
        normalize_name(dataset.partition(":")[0]), by_dataset.get(OTHER_DATASETS)
    )
    if budgets_of_dataset == DATASET_BUDGET:
        return budgets
    if not isinstance(budgets_of_dataset, Mapping) or norm not in budgets_of_dataset:
        raise UserError(
            f"suite {spec.name!r} has no {norm} budget for data set {dataset!r}, only for "
            f"{', '.join(spec.budgets)}; add one under `budgets` in a copy of the suite, or take "
            "a suite that follows the data set, such as union"
        )
    return budgets_of_dataset
