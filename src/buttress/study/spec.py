"""A study: a question, and the grid of runs, suites and analyses that answer it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from pydantic import Field, PositiveInt

from buttress.analysis.core import ANALYSES
from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.evaluation.suite import load_suite, resolve_suite
from buttress.records.spec import RunSpec
from buttress.shelf import Shelf
from buttress.spec import Spec
from buttress.training.recipe import load_recipe
from buttress.training.train import build, resolve


class Grid(Spec):
    """Every combination is one run."""

    model: tuple[str, ...] = Field(min_length=1)
    recipe: tuple[str, ...] = Field(min_length=1)
    seed: tuple[int, ...] = (0,)


class StudySpec(Spec):
    """What a study file holds."""

    name: str
    title: str = ""
    question: str
    dataset: str
    limit: PositiveInt | None = None
    grid: Grid
    changes: tuple[str, ...] = ()  # key=value changes of every recipe
    suites: tuple[str, ...] = Field(min_length=1)
    test_limit: PositiveInt | None = None
    analyses: tuple[str, ...] = ()

    def runs(self) -> list[RunSpec]:
        """The runs of the grid, resolved and checked: a wrong name is found before the first."""
        recipes = {name: load_recipe(name, self.changes) for name in self.grid.recipe}
        specs = [
            resolve(model, self.dataset, recipes[recipe], seed=seed, limit=self.limit)
            for model, recipe, seed in product(self.grid.model, self.grid.recipe, self.grid.seed)
        ]
        for spec in {s.model: s for s in specs}.values():
            build(spec)
        data = load_dataset(self.dataset, "test")
        for suite in self.suites:
            resolve_suite(load_suite(suite), data.budgets, data.name)
        for analysis in self.analyses:
            ANALYSES.entry(analysis)
        return specs


STUDIES = Shelf("study", "buttress.study", "studies")


def list_studies() -> list[str]:
    return STUDIES.names()


def load_study(name: str | Path) -> StudySpec:
    """A study by name or from a YAML file."""
    where, raw = STUDIES.read(name)
    if not isinstance(raw, dict):
        raise UserError(f"{where}: a study is a mapping of keys, but got {type(raw).__name__}")
    return StudySpec.parse(raw, where)
