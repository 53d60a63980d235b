"""Suites: named lists of attacks and corruptions. A suite says what the worst case is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from buttress.attacks.core import ATTACKS
from buttress.data.corruptions import SEVERITIES
from buttress.errors import UserError
from buttress.evaluation.corruption import ALL, LIST, corruption_names, parse_corruption
from buttress.files import file_name
from buttress.records.corruption import CORRUPTION
from buttress.registry import canonical
from buttress.shelf import Shelf
from buttress.spec import Spec, short
from buttress.threat import NORMS, Norm, Threat, parse_eps, parse_norm

CLEAN = "clean"
LONGEST_NAME = 100  # characters
OWN = "data"  # in place of an eps or of a data set's budgets: those of the data set itself
OTHERS = "others"  # in place of a data set: all that are not named


class EntrySpec(Spec):
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
    def _is_one_thing(self) -> EntrySpec:
        if bool(self.attack) == bool(self.corruption):
            raise ValueError("an entry needs either `attack` or `corruption`")
        if self.corruption and (self.threat or self.args):
            raise ValueError("a corruption has no `threat` and no `args`")
        if self.severity is not None and (not self.corruption or self.severity not in SEVERITIES):
            raise ValueError(f"`severity` is for corruptions, 1 to 5, but got {self.severity}")
        return self

    @property
    def label(self) -> str:
        """What the entry is called in a list of suites."""
        if not self.corruption:
            return self.name or f"{self.attack} {self.threat}".strip()
        each = "" if self.severity is None else f":{self.severity}"
        return f"{LIST}{each}" if self.corruption == ALL else f"{self.corruption}{each}"


def parse_entry(text: str) -> dict[str, Any]:
    """``clean``, ``pgd-linf``, ``pgd:L2``, ``pgd:L2:0.5``, ``corruption:fog:3`` ... -> an entry."""
    head, _, threat = text.partition(":")
    if canonical(head) in (CORRUPTION, LIST):
        return parse_corruption(text)
    stem, _, tail = head.rpartition("-")
    if not threat and stem and canonical(tail) in {canonical(n) for n in NORMS}:
        return {"name": text, "attack": stem, "threat": parse_norm(tail)}
    return {"name": text, "attack": head, "threat": threat}


def _budgets(raw: Any) -> Any:
    """Norms and eps in any usual spelling."""
    if not isinstance(raw, Mapping):
        return raw
    return {
        name: {parse_norm(n): parse_eps(e) for n, e in row.items()}
        if hasattr(row, "items")
        else row
        for name, row in raw.items()
    }


Line = Annotated[EntrySpec, BeforeValidator(lambda v: parse_entry(v) if isinstance(v, str) else v)]
Budgets = Annotated[
    dict[str, dict[Norm, float] | Literal["data"]],
    BeforeValidator(_budgets),
]


class SuiteSpec(Spec):
    """What a suite file holds."""

    name: str = ""
    about: str = ""
    source: str = ""
    mode: Literal["table", "worst_case"] = "table"  # worst_case: a broken image is left alone
    corruptions_count: bool = True  # in the worst case
    budgets: Budgets = Field(default_factory=dict)  # data set -> norm -> eps, if not its own
    entries: tuple[Line, ...] = Field(min_length=1)

    @property
    def holds(self) -> str:
        """The names of its entries, in order."""
        return ", ".join(line.label for line in self.entries)


class Entry(NamedTuple):
    """One attack or corruption of a suite, resolved for a data set."""

    name: str
    attack: str
    threat: Threat | None
    args: Mapping[str, Any]
    counts: bool = True  # in the worst case

    @property
    def is_corruption(self) -> bool:
        return self.attack == CORRUPTION


SUITES = Shelf("suite", "buttress.evaluation", "suites")


def list_suites() -> list[str]:
    return SUITES.names()


def load_suite(suite: str | Path | Sequence[str] | SuiteSpec) -> SuiteSpec:
    """A suite by name, from a YAML file, or from a list of entries."""
    if isinstance(suite, SuiteSpec):
        return suite
    if not isinstance(suite, (str, Path)):
        return SuiteSpec.parse({"name": "custom", "entries": list(suite)}, "suite")
    where, raw = SUITES.read(suite)
    if isinstance(raw, list):
        raw = {"name": Path(suite).stem, "entries": raw}
    if not isinstance(raw, dict):
        raise UserError(f"{where}: a suite is a list of attacks, but got {type(raw).__name__}")
    return SuiteSpec.parse(raw, where)


def resolve_suite(spec: SuiteSpec, budgets: Mapping[Norm, float], dataset: str = "") -> list[Entry]:
    """The entries of a suite for a data set, clean first; names and arguments are tried."""
    entries = [Entry(CLEAN, CLEAN, None, {})]
    for line in spec.entries:
        if line.corruption:
            found = _corruptions(line, spec.corruptions_count)
        elif canonical(line.attack) == CLEAN:
            found = []
        else:
            found = _attack(spec, line, budgets, dataset)
            if line.threat.endswith(f":{OWN}"):  # where both budgets are one, once is enough
                known = [(e.attack, e.threat, e.args) for e in entries]
                found = [e for e in found if (e.attack, e.threat, e.args) not in known]
        for entry in found:
            if entry.name in [e.name for e in entries]:
                raise UserError(
                    f"suite {spec.name!r} has two entries named {entry.name!r}; name one of them"
                )
            entries.append(entry)
    return entries


def _corruptions(line: EntrySpec, counts: bool) -> list[Entry]:
    severities = SEVERITIES if line.severity is None else (line.severity,)
    names = corruption_names(line.corruption)
    pairs = [(name, severity) for name in names for severity in severities]
    return [
        Entry(
            _entry_name(line.name) if line.name and len(pairs) == 1 else f"{name}-{severity}",
            CORRUPTION,
            None,
            {"corruption": name, "severity": severity},
            counts,
        )
        for name, severity in pairs
    ]


def _attack(
    spec: SuiteSpec, line: EntrySpec, budgets: Mapping[Norm, float], dataset: str
) -> list[Entry]:
    ATTACKS.create(line.attack, line.args)
    threat = _threat(spec, line, budgets, dataset)
    name = _entry_name(line.name or f"{line.attack}-{threat.norm.lower()}")
    return [Entry(name, line.attack, threat, line.args)]


def _entry_name(name: str) -> str:
    """The name as a file can have it: two that differ in a slash only are the same."""
    if not name.strip(".") or len(name) > LONGEST_NAME or not name.isprintable():
        raise UserError(
            f"the name of an entry must have 1 to {LONGEST_NAME} characters that can be printed, "
            f"but got {short(name)}"
        )
    return file_name(name)


def _threat(
    spec: SuiteSpec, line: EntrySpec, budgets: Mapping[Norm, float], dataset: str
) -> Threat:
    if not line.threat:
        raise UserError(
            f"attack {line.attack!r} needs a threat: write {line.attack}-linf or "
            f"{line.attack}:Linf:8/255"
        )
    norm, sep, eps = line.threat.partition(":")
    if sep and eps != OWN:
        return Threat.parse(line.threat)
    if not sep and spec.budgets:
        budgets = _own_budgets(spec, budgets, dataset, parse_norm(norm))
    return Threat(parse_norm(norm), budgets[parse_norm(norm)])


def _own_budgets(
    spec: SuiteSpec, budgets: Mapping[Norm, float], dataset: str, norm: Norm
) -> Mapping[Norm, float]:
    """The budgets that the suite has for a data set; an error where it has none."""
    known = {canonical(name): row for name, row in spec.budgets.items()}
    own = known.get(canonical(dataset.partition(":")[0]), known.get(OTHERS))
    if own == OWN:
        return budgets
    if not isinstance(own, Mapping) or norm not in own:
        raise UserError(
            f"suite {spec.name!r} has no {norm} budget for data set {dataset!r}, only for "
            f"{', '.join(spec.budgets)}; add one under `budgets` in a copy of the suite, or take "
            "a suite that follows the data set, such as union"
        )
    return own
