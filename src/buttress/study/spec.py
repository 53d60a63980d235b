"""What a study file holds: a question, a grid of runs, what is measured, published and claimed.

Every value of a grid may differ by scale: ``model: {smoke: vit_tiny, paper: vit_p4}``. In a model's
name and in changes of a recipe ``{depth}`` stands for the label of the axis ``depth``.
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

AS_IN = "as_in"  # an axis of another study: ``architecture: {as_in: table1}``


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
    of: str = "worst_case"  # an attack of the suite, clean, corruptions, parameters_m, gmacs ...
    suite: str = ""  # the first of the study if empty
    which: Literal["best", "last"] = "best"
    analysis: str = ""  # instead of a suite: an analysis, whose value is at ``of``
    unit: Literal["percent", "number"] = "percent"
    higher_is_better: bool = True


class Listed(Spec):
    """Rows that are no runs: a list in the result of an analysis of the whole study."""

    analysis: str
    of: str  # where in the result the list is
    rows: tuple[str, ...] = Field(min_length=1)  # fields of an item whose values name its row


class Published(Spec):
    """The published table: a CSV file beside the study, percent in its columns."""

    file: str
    rows: dict[str, str]  # axis or attribute -> the CSV column that holds its values
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


def _options(raw: object) -> object:
    """``[1, 3, 5]`` is three labels that change nothing but what is named after them."""
    return {str(label): {} for label in raw} if isinstance(raw, (list, tuple)) else raw


def _several(raw: object) -> object:
    return (raw,) if isinstance(raw, (str, Mapping)) else raw


Options = Annotated[dict[str, Setting], BeforeValidator(_options)]
Labels = Annotated[tuple[str, ...], BeforeValidator(_several)]
Listings = Annotated[tuple[Listed, ...], BeforeValidator(_several)]


class Scaled(Spec):
    """A study at one scale."""

    base: Setting = Setting()
    axes: dict[str, Options] = Field(default_factory=dict)
    only: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # axis -> labels at this scale
    leave_out: tuple[dict[str, Labels], ...] = ()  # combinations that are not run
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    suites: tuple[str, ...] = ()
    last_too: bool = False  # evaluate the last epoch beside the best
    test_limit: int | None = Field(default=None, ge=1)
    analyses: tuple[Use, ...] = ()  # of every run
    together: tuple[Use, ...] = ()  # of all runs at once, or of none
    listed: Listings = ()  # where the rows are, if not the runs
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

    @property
    def called(self) -> str:
        """What a message calls it."""
        return f"study {self.name}"

    def scaled(self, scale: Scale) -> Scaled:
        """The study at one scale, fully checked."""
        found = self._whole(scale)
        return found.model_copy(update={"axes": _chosen(found, self.called)})

    def labels(self, scale: Scale) -> dict[str, set[str]]:
        """The labels of each axis with those that a scale leaves out."""
        return {axis: set(options) for axis, options in self._whole(scale).axes.items()}

    def _whole(self, scale: Scale) -> Scaled:
        """With every label of every axis."""
        where = f"{self.called} at scale {scale}"
        return Scaled.parse(at(_with_shared_axes(self.grid, where), scale), where)


def _with_shared_axes(grid: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The grid with the axes of other studies in place of ``{as_in: name}``."""
    axes = grid.get("axes")
    if not isinstance(axes, Mapping):
        return dict(grid)
    found = {}
    for axis, options in axes.items():
        found[axis] = options
        if isinstance(options, Mapping) and isinstance(options.get(AS_IN), str):
            other = load_study(options[AS_IN]).grid.get("axes", {})
            if axis not in other:
                raise UserError(f"{where}: the study {options[AS_IN]} has no axis {axis!r}")
            found[axis] = other[axis]
    return {**grid, "axes": found}


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
