"""Suites: named lists of attacks. A suite says what the worst case is taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from buttress.attacks.core import ATTACKS
from buttress.errors import UserError
from buttress.registry import canonical
from buttress.shelf import Shelf
from buttress.spec import Spec, short
from buttress.threat import NORMS, Norm, Threat, parse_norm

CLEAN = "clean"
LONGEST_NAME = 100


class EntrySpec(Spec):
    """One line of a suite. A threat without eps takes the budget of the data set."""

    name: str = ""
    attack: str
    threat: str = ""
    args: dict[str, Any] = Field(default_factory=dict)


def parse_entry(text: str) -> dict[str, Any]:
    """``clean``, ``pgd-linf``, ``pgd:L2`` or ``pgd:L2:0.5`` -> an entry."""
    head, _, threat = text.partition(":")
    stem, _, tail = head.rpartition("-")
    if not threat and stem and canonical(tail) in {canonical(n) for n in NORMS}:
        return {"name": text, "attack": stem, "threat": parse_norm(tail)}
    return {"name": text, "attack": head, "threat": threat}


Line = Annotated[EntrySpec, BeforeValidator(lambda v: parse_entry(v) if isinstance(v, str) else v)]


class SuiteSpec(Spec):
    """What a suite file holds."""

    name: str = ""
    about: str = ""
    source: str = ""
    mode: Literal["table", "worst_case"] = "table"  # worst_case: a broken image is left alone
    entries: tuple[Line, ...] = Field(min_length=1)


class Entry(NamedTuple):
    """One attack of a suite, resolved for a data set."""

    name: str
    attack: str
    threat: Threat | None
    args: Mapping[str, Any]


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


def resolve_suite(spec: SuiteSpec, budgets: Mapping[Norm, float]) -> list[Entry]:
    """The attacks of a suite with their threats, clean first; names and arguments are tried."""
    entries = [Entry(CLEAN, CLEAN, None, {})]
    for line in spec.entries:
        if canonical(line.attack) == CLEAN:
            continue
        ATTACKS.create(line.attack, line.args)
        threat = _threat(line, budgets)
        name = line.name or f"{line.attack}-{threat.norm.lower()}"
        name = _file_name(name)
        if name in [e.name for e in entries]:
            raise UserError(f"suite {spec.name!r} has two entries named {name!r}; name one of them")
        entries.append(Entry(name, line.attack, threat, line.args))
    return entries


def _file_name(name: str) -> str:
    """The name as a file can have it: two that differ in a slash only are the same."""
    plain = name.replace("/", "_").replace("\\", "_").lstrip(".")
    if not plain or len(plain) > LONGEST_NAME or not plain.isprintable():
        raise UserError(
            f"the name of an entry must have 1 to {LONGEST_NAME} characters that can be printed, "
            f"but got {short(name)}"
        )
    return plain


def _threat(line: EntrySpec, budgets: Mapping[Norm, float]) -> Threat:
    if ":" in line.threat:
        return Threat.parse(line.threat)
    if not line.threat:
        raise UserError(
            f"attack {line.attack!r} needs a threat: write {line.attack}-linf or "
            f"{line.attack}:Linf:8/255"
        )
    norm = parse_norm(line.threat)
    return Threat(norm, budgets[norm])
