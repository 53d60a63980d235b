"""Runs checks of one kind, and stores what they find in records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from buttress.evaluation.doctor.core import CHECKS, Chart, Patient
from buttress.records.diagnosis import Finding, findings_in, merged
from buttress.records.evaluation import AttackRecord

# The order in which they are run: a model with the wrong number of classes cannot be attacked.
KINDS = ("look", "ball", "attack", "records")
FIRST = "class_count"


def checks_of(kind: str) -> list[str]:
    """The names of the checks of a kind, in the order they are run."""
    return sorted(CHECKS.names(kind), key=lambda name: name != FIRST)


def examine(subject: Patient | Chart, kind: str) -> list[Finding]:
    """What the checks of a kind find."""
    found = (CHECKS.get(name)(subject) for name in checks_of(kind))
    return [f for f in found if f is not None]


def told(record: AttackRecord, before: Sequence[AttackRecord]) -> AttackRecord:
    """The record with what is seen beside those before it, unless one of them says so already."""
    known = {f.name: f for r in before for f in findings_in(r.meta)}
    own = list(findings_in(record.meta))
    for found in examine(Chart([*before, record]), "records"):
        if found.name not in known or merged([known[found.name], found])[0] == found:
            own.append(found)
    return with_findings(record, own)


def retold(records: Mapping[str, AttackRecord]) -> dict[str, AttackRecord]:
    """Records put together from parts: what is seen beside each other is looked for again."""
    found: dict[str, AttackRecord] = {}
    for name, record in records.items():
        kept = [f for f in findings_in(record.meta) if "records" not in tags_of(f)]
        found[name] = told(with_findings(record, kept), list(found.values()))
    return found


def with_findings(record: AttackRecord, findings: Iterable[Finding]) -> AttackRecord:
    dumped = [f.model_dump(mode="json") for f in findings]
    return replace(record, meta={**record.meta, "findings": dumped})


def tags_of(found: Finding) -> tuple[str, ...]:
    return CHECKS.entry(found.name).tags if found.name in CHECKS else ()
