"""Suites as they are written: names, YAML files, lists of entries and single entries.

Nothing here needs torch, so that a misspelt suite is refused at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from buttress.config import SUITES, Spec
from buttress.errors import UnknownNameError, UserError
from buttress.registry import close_names_text, normalize_name
from buttress.threats.arguments import DEFAULT_NORM
from buttress.threats.core import Threat, find_kind, parse_kind
from buttress.threats.norm_ball import NORMS

CLEAN = "clean"
CORRUPTION_ATTACK = "corruption"  # in place of an attack
CORRUPTIONS_ENTRY, ALL_CORRUPTIONS = "corruptions", "all"
SEVERITIES = (1, 2, 3, 4, 5)
DATASET_BUDGET = "data"  # in place of an eps or of budgets: the eps of the dataset itself
OTHER_DATASETS = "others"  # in place of a dataset: all datasets that are not listed

# Names of attacks elsewhere, and what they are called here.
ATTACK_ALIASES = {
    "aa": "autoattack", "standard": "autoattack", "pgd20": "pgd", "pgd_20": "pgd", "bim": "pgd",
    "pgd_100": "pgd", "pgd100": "pgd", "linfpgd": "pgd-linf", "l2pgd": "pgd-l2", "apgd": "apgd-ce",
    "robustbench": "robustbench-linf", "corruption": "corruptions", "none": "clean",
}  # fmt: skip


class SuiteEntrySpec(Spec):
    """One entry of a suite: an attack with its threat model, or corruptions.

    A threat model without a budget takes that of the suite's ``budgets`` for the dataset; if the
    suite has none, a norm takes the default eps of the dataset and any other kind its usual budget
    for the size of the images. ``L2:data`` always takes the latter. An attack without a threat
    model takes its first norm, which is Linf for most, or the only kind that it moves in.
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
            raise ValueError("a suite entry must have exactly one of `attack` and `corruption`")
        if self.corruption and (self.threat or self.args):
            raise ValueError("a corruption entry takes no `threat` and no `args`")
        if self.severity is not None and (not self.corruption or self.severity not in SEVERITIES):
            raise ValueError(
                "`severity` must be 1 to 5 and needs `corruption` in the same entry, "
                f"but got {self.severity}"
            )
        return self

    @property
    def display_name(self) -> str:
        """Name of the entry in a list of suites."""
        if not self.corruption:
            return self.name or f"{self.attack} {self.threat}".strip()
        each = "" if self.severity is None else f":{self.severity}"
        is_all = self.corruption == ALL_CORRUPTIONS
        return f"{CORRUPTIONS_ENTRY if is_all else self.corruption}{each}"


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
            "a corruption must be corruption:NAME[:SEVERITY] or corruptions[:SEVERITY], "
            f"e.g. corruption:fog:3, but got {text!r}"
        )
    return {CORRUPTION_ATTACK: name, "severity": None if severity is None else int(severity)}


def parse_entry(text: str) -> dict[str, Any]:
    """``clean``, ``pgd-linf``, ``pgd:L2``, ``pgd:L2:0.5``, ``corruption:fog:3`` ... -> an entry."""
    prefix, _, threat = text.partition(":")
    if normalize_name(prefix) in (CORRUPTION_ATTACK, CORRUPTIONS_ENTRY):
        return parse_corruption(text)
    parts = prefix.split("-")
    tails = ("-".join(parts[i:]) for i in range(1, len(parts)))
    tail = next((tail for tail in tails if find_kind(tail)), "")
    if not threat and tail:
        return {"name": text, "attack": prefix[: -len(tail) - 1], "threat": parse_kind(tail)}
    return {"name": text, "attack": prefix, "threat": threat}


def split_entries(text: str) -> list[str]:
    """``clean,grid:spatial:30,3`` -> its entries; budgets may have commas of their own."""
    return [
        entry.strip() for entry in re.split(r",(?!\s*(?:[\d./]+|pixels|values)\s*(?:,|$))", text)
    ]


def _parse_budgets(raw: Any) -> Any:
    """Parse the kinds of threat models and the sizes of budgets."""
    if not isinstance(raw, Mapping):
        return raw
    return {
        name: {parse_kind(str(k)): Threat.parse(f"{k}:{size}").budget for k, size in row.items()}
        if isinstance(row, Mapping)
        else row
        for name, row in raw.items()
    }


SuiteEntryField = Annotated[
    SuiteEntrySpec, BeforeValidator(lambda v: parse_entry(v) if isinstance(v, str) else v)
]
BudgetsField = Annotated[
    dict[str, dict[str, str] | Literal["data"]],
    BeforeValidator(_parse_budgets),
]


class SuiteSpec(Spec):
    """The content of a suite file."""

    name: str = ""
    description: str = ""
    source: str = ""
    mode: Literal["table", "worst_case"] = "table"  # worst_case: fooled images are skipped
    corruptions_in_worst_case: bool = True
    budgets: BudgetsField = Field(default_factory=dict)  # dataset -> kind -> size
    entries: tuple[SuiteEntryField, ...] = Field(min_length=1)

    @property
    def entry_names(self) -> str:
        """The names of its entries, in order."""
        return ", ".join(line.display_name for line in self.entries)


def with_threat(spec: SuiteSpec, threat: str) -> SuiteSpec:
    """The suite with all attacks in one threat model, ``L2:0.5`` or ``L2`` at the usual eps."""
    kind = parse_kind(threat.partition(":")[0])
    attacks = [e for e in spec.entries if e.attack and normalize_name(e.attack) != CLEAN]
    if len(threats := {e.threat or DEFAULT_NORM for e in attacks}) > 1:
        names = {e.attack for e in attacks}
        one = f"{names.pop()}-{kind.lower()}" if len(names) == 1 else f"fast-{kind.lower()}"
        raise UserError(
            f"suite {spec.name!r} has attacks under {', '.join(sorted(threats))}; one threat model "
            f"for all needs a suite with one, such as {one} or pgd,square"
        )
    is_same_kind = all(parse_kind(t.partition(":")[0]) == kind for t in threats)
    entries = [
        e.model_copy(update={"threat": threat, "name": e.name if is_same_kind else ""})
        if e in attacks
        else e
        for e in spec.entries
    ]
    return spec.model_copy(update={"name": f"{spec.name}-{threat}", "entries": tuple(entries)})


def list_suites() -> list[str]:
    return SUITES.names()


def parse_suite(
    suite: str | Path | Sequence[str | SuiteEntrySpec] | SuiteSpec, attacks: Collection[str]
) -> SuiteSpec:
    """A suite by name, from a YAML file, of entries, or of one entry; ``attacks`` are known names.

    A text with a comma or a colon is a list of entries, such as ``clean,pgd:L2:0.5``.
    """
    if isinstance(suite, SuiteSpec):
        return suite
    if isinstance(suite, str) and not suite.endswith((".yaml", ".yml")):
        if "," in suite or ":" in suite:
            suite = split_entries(suite)
        elif normalize_name(suite) not in map(normalize_name, list_suites()):
            spec = SuiteSpec.parse({"name": suite, "entries": [suite]}, "suite")
            return _check_single_entry(spec, attacks)
    if not isinstance(suite, (str, Path)):
        return SuiteSpec.parse({"name": "custom", "entries": list(suite)}, "suite")
    location, raw = SUITES.load(suite)
    if isinstance(raw, list):
        raw = {"name": Path(suite).stem, "entries": raw}
    if not isinstance(raw, dict):
        raise UserError(
            f"{location}: a suite must be a list of entries or a mapping with `entries`, but got "
            f"{type(raw).__name__}"
        )
    return SuiteSpec.parse(raw, location)


def _check_single_entry(spec: SuiteSpec, attacks: Collection[str]) -> SuiteSpec:
    """Raise unless the only entry is clean, corruptions or a known attack."""
    attack = normalize_name(spec.entries[0].attack)
    if attack not in ("", CLEAN, *map(normalize_name, attacks)):
        if attack in ATTACK_ALIASES:
            raise UnknownNameError(
                f"unknown suite or attack {spec.name!r}; did you mean {ATTACK_ALIASES[attack]!r}?"
            )
        choices = [*list_suites(), *attacks, *(f"{a}-{n.lower()}" for a in attacks for n in NORMS)]
        raise UnknownNameError(
            f"unknown suite or attack {spec.name!r}{close_names_text(spec.name, choices)} Run "
            "`buttress list suites` or `buttress list attacks`; a YAML file needs its ending .yaml"
        )
    return spec
