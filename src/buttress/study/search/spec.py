"""What a search file holds: the grid of a study, a budget, and how it is thinned out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from buttress.errors import UserError
from buttress.models.cost import Cost
from buttress.shelf import Shelf
from buttress.spec import Spec
from buttress.study.scales import Scale, at
from buttress.study.spec import Scaled, StudySpec

Positive = Annotated[float, Field(gt=0)]


class Budget(Spec):
    """What a network may cost at most."""

    parameters: Positive | None = None
    macs: Positive | None = None  # multiply-accumulates of one image

    def holds(self, cost: Cost) -> bool:
        return cost.parameters <= (self.parameters or cost.parameters) and cost.macs <= (
            self.macs or cost.macs
        )

    def given(self) -> dict[str, float]:
        return {name: value for name, value in self if value is not None}


class Halving(Spec):
    """How many are tried, and how fast they become fewer."""

    candidates: PositiveInt | None = None  # drawn from those in the budget; all if None
    rungs: PositiveInt = 3
    eta: Annotated[float, Field(gt=1)] = 3.0  # a rung trains eta times as long as the one before
    doubt: Annotated[float, Field(ge=1)] = 1.5  # places, as a multiple of those kept by rank

    def share(self, rung: int) -> float:
        """The part of a recipe's epochs that a rung trains, counted from 0."""
        return self.eta ** (rung + 1 - self.rungs)


class SearchSpec(StudySpec):
    """A search file: a study whose runs are trained only as far as they are worth it."""

    budget: dict[str, Any] = Field(default_factory=dict)  # `Budget`, with values by scale
    halving: dict[str, Any] = Field(default_factory=dict)  # `Halving`, with values by scale

    @property
    def called(self) -> str:
        return f"search {self.name}"

    def scaled(self, scale: Scale) -> Scaled:
        found = super().scaled(scale)
        measured = ("suites", "analyses", "together", "listed", "columns", "test_limit", "last_too")
        extra = [name for name in measured if getattr(found, name)]
        extra += [name for name in ("claims", "published") if getattr(self, name)]
        if extra:
            raise UserError(
                f"{self.called}: a search looks at robust validation accuracy alone and has no "
                f"{extra[0]}; evaluate what it finds with `buttress evaluate`"
            )
        return found

    def budget_at(self, scale: Scale) -> Budget:
        return Budget.parse(at(self.budget, scale) or {}, f"{self.called}: budget")

    def halving_at(self, scale: Scale) -> Halving:
        return Halving.parse(at(self.halving, scale) or {}, f"{self.called}: halving")


SEARCHES = Shelf("search", "buttress.study", "searches")


def list_searches() -> list[str]:
    return SEARCHES.names()


def load_search(name: str | Path) -> SearchSpec:
    """A search by name or from a YAML file."""
    where, raw = SEARCHES.read(name)
    if not isinstance(raw, dict):
        raise UserError(f"{where}: a search is a mapping of keys, but got {type(raw).__name__}")
    return SearchSpec.parse(raw, where)
