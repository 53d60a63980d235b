"""What a study file holds: a question, a grid of runs, what is measured, published and claimed.

Every value of a grid may differ by scale: ``model: {smoke: vit_tiny, paper: vit_p4}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from buttress.errors import UserError
from buttress.shelf import Shelf
from buttress.spec import Component, Spec
from buttress.study.scales import Scale, at


class Setting(Spec):
    """A part of a run's description; later ones win, changes add up."""

    model: str | None = None
    model_args: dict[str, Any] = Field(default_factory=dict)
    dataset: str | None = None
    limit: int | None = Field(default=None, ge=1)  # training images
    recipe: str | None = None
    set: tuple[str, ...] = ()  # key=value changes of the recipe
    start: dict[str, str] | None = None  # fine-tune from the run with these labels
    attributes: dict[str, str | float] = Field(default_factory=dict)  # what claims may ask for


class Column(Spec):
    """One measured column: what is read from the runs at some labels."""

    where: dict[str, str] = Field(default_factory=dict)  # axis -> label; the other axes are rows
    of: str = "worst_case"  # an attack of the suite, clean, worst_case, parameters_m, gmacs ...
    suite: str = ""  # the first of the study if empty
    which: Literal["best", "last"] = "best"
    analysis: str = ""  # instead of a suite: an analysis, whose value is at ``of``
    unit: Literal["percent", "number"] = "percent"
    higher_is_better: bool = True


class Published(Spec):
    """The published table: a CSV file beside the study, percent in its columns."""

    file: str
    rows: dict[str, str]  # axis -> the CSV column that holds its labels
    only: dict[str, str] = Field(default_factory=dict)  # CSV column -> value: other lines are left
    columns: dict[str, str] = Field(default_factory=dict)  # ours -> theirs, where names differ
    notes: tuple[str, ...] = ()


class Claim(Spec):
    """A statement that data can decide."""

    id: str
    says: str
    test: Component  # a predicate by name, with its arguments
    published: str = ""  # what is known where no table is published: "text only", "figure only"


def _component(raw: object) -> object:
    """``sparsity`` or ``{lipschitz: {steps: 10}}`` or ``{name: ..., args: ...}``."""
    if isinstance(raw, str):
        return {"name": raw}
    if isinstance(raw, Mapping) and len(raw) == 1 and "name" not in raw:
        ((name, args),) = raw.items()
        return {"name": name, "args": args or {}}
    return raw


Use = Annotated[Component, BeforeValidator(_component)]


class Scaled(Spec):
    """A study at one scale."""

    base: Setting = Setting()
    axes: dict[str, dict[str, Setting]] = Field(default_factory=dict)
    only: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # axis -> labels at this scale
    leave_out: tuple[dict[str, str], ...] = ()  # combinations that are not run
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    suites: tuple[str, ...] = ()
    last_too: bool = False  # evaluate the last epoch beside the best
    test_limit: int | None = Field(default=None, ge=1)
    analyses: tuple[Use, ...] = ()  # of every run
    together: tuple[Use, ...] = ()  # of all runs at once, or of none
    columns: dict[str, Column] = Field(default_factory=dict)


class StudySpec(Spec):
    """A study file."""

    name: str
    title: str = ""
    question: str
    source: str = ""
    about: str = ""  # what a reader must know: where we differ from what was published
    published: Published | None = None
    claims: tuple[Claim, ...] = ()
    grid: dict[str, Any]  # `Scaled`, with values by scale

    def scaled(self, scale: Scale) -> Scaled:
        """The study at one scale, fully checked."""
        found = Scaled.parse(at(self.grid, scale), f"study {self.name} at scale {scale}")
        return found.model_copy(update={"axes": _chosen(found, f"study {self.name}")})


def _chosen(scaled: Scaled, where: str) -> dict[str, dict[str, Setting]]:
    """The axes with the labels that this scale has."""
    for axis, labels in scaled.only.items():
        missing = [label for label in labels if label not in scaled.axes.get(axis, {})]
        if missing or axis not in scaled.axes:
            raise UserError(f"{where}: `only` names {axis} {missing}, which the axes do not have")
    return {
        axis: {label: v for label, v in options.items() if label in scaled.only.get(axis, options)}
        for axis, options in scaled.axes.items()
    }


STUDIES = Shelf("study", "buttress.study", "studies")


def list_studies() -> list[str]:
    return STUDIES.names()


def load_study(name: str | Path) -> StudySpec:
    """A study by name or from a YAML file."""
    where, raw = STUDIES.read(name)
    if not isinstance(raw, dict):
        raise UserError(f"{where}: a study is a mapping of keys, but got {type(raw).__name__}")
    return StudySpec.parse(raw, where)
