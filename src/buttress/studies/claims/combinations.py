"""Claims made of other claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from buttress.studies.claims.conditions import Condition, Negation, all_of
from buttress.studies.claims.core import CLAIMS, Predicate
from buttress.studies.table import ValueTable


def _create(spec: Mapping[str, Any]) -> Predicate:
    predicate: Predicate = CLAIMS.create(spec["name"], spec.get("args", {}))
    return predicate


@CLAIMS.register("all")
@dataclass(frozen=True)
class AllClaims(Predicate):
    """Several claims at once."""

    claims: list[dict[str, Any]]  # name and args of each

    @cached_property
    def predicates(self) -> list[Predicate]:
        return [_create(claim) for claim in self.claims]

    def columns(self) -> Sequence[str]:
        return [column for part in self.predicates for column in part.columns()]

    def condition(self, table: ValueTable) -> Condition:
        return all_of([part.condition(table) for part in self.predicates])

    def evidence(self, table: ValueTable) -> str:
        return "; ".join(part.evidence(table) for part in self.predicates)


@CLAIMS.register("not")
@dataclass(frozen=True)
class NegatedClaim(Predicate):
    """Another claim is false."""

    claim: dict[str, Any]  # its name and args

    @cached_property
    def predicate(self) -> Predicate:
        return _create(self.claim)

    def columns(self) -> Sequence[str]:
        return self.predicate.columns()

    def condition(self, table: ValueTable) -> Condition:
        return Negation(self.predicate.condition(table))

    def evidence(self, table: ValueTable) -> str:
        return self.predicate.evidence(table)
