"""Search files: the grid of a study, a budget and successive halving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from buttress.config import SEARCHES, Spec
from buttress.errors import UserError
from buttress.models.cost import ModelCost
from buttress.studies.spec import Scale, ScaledStudy, StudySpec, value_at_scale

PositiveFloat = Annotated[float, Field(gt=0)]


class SearchBudget(Spec):
    """Upper limits of the cost of a model."""

    parameters: PositiveFloat | None = None
    macs: PositiveFloat | None = None  # multiply-accumulates of one image

    def allows(self, cost: ModelCost) -> bool:
        return cost.parameters <= (self.parameters or cost.parameters) and cost.macs <= (
            self.macs or cost.macs
        )

    def limits(self) -> dict[str, float]:
        return {name: value for name, value in self if value is not None}


class HalvingSpec(Spec):
    """Settings of successive halving."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "candidates": "`max_candidates`",
        "doubt": "`tie_factor`",
    }

    max_candidates: PositiveInt | None = None  # sampled from those in the budget; all if None
    rungs: PositiveInt = 3
    eta: Annotated[float, Field(gt=1)] = 3.0  # a rung trains eta times as long as the one before
    tie_factor: Annotated[float, Field(ge=1)] = 1.5  # survivors with ties, as a multiple

    def epoch_fraction(self, rung: int) -> float:
        """Fraction of a recipe's epochs that a rung trains, counted from 0."""
        return self.eta ** (rung + 1 - self.rungs)


class SearchSpec(StudySpec):
    """A search file: a study whose runs are pruned by successive halving."""

    budget: dict[str, Any] = Field(default_factory=dict)  # `SearchBudget`, with values by scale
    halving: dict[str, Any] = Field(default_factory=dict)  # `HalvingSpec`, with values by scale

    @property
    def display_name(self) -> str:
        return f"search {self.name}"

    def at_scale(self, scale: Scale) -> ScaledStudy:
        scaled = super().at_scale(scale)
        study_only_fields = (
            "suites",
            "analyses",
            "group_analyses",
            "analysis_rows",
            "columns",
            "test_limit",
            "evaluate_last",
        )
        unsupported = [name for name in study_only_fields if getattr(scaled, name)]
        unsupported += [name for name in ("claims", "published") if getattr(self, name)]
        if unsupported:
            raise UserError(
                f"{self.display_name}: a search ranks by robust validation accuracy and does not "
                f"support `{unsupported[0]}`; evaluate the best run with `buttress evaluate`"
            )
        return scaled

    def budget_at(self, scale: Scale) -> SearchBudget:
        return SearchBudget.parse(
            value_at_scale(self.budget, scale) or {}, f"{self.display_name}: budget"
        )

    def halving_at(self, scale: Scale) -> HalvingSpec:
        return HalvingSpec.parse(
            value_at_scale(self.halving, scale) or {}, f"{self.display_name}: halving"
        )


def list_searches() -> list[str]:
    return SEARCHES.names()


def load_search(name: str | Path) -> SearchSpec:
    """Load a search by name or from a YAML file."""
    source, raw = SEARCHES.load(name)
    if not isinstance(raw, dict):
        raise UserError(f"{source}: a search file must be a mapping, but got {type(raw).__name__}")
    return SearchSpec.parse(raw, source)
