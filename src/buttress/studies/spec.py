"""Study files: a question, a grid of runs, columns, published values and claims.

Every value of a grid may differ by scale: ``model: {smoke: vit_tiny, paper: vit_p4}``. In a model's
name and in changes of a recipe ``{depth}`` stands for the label of the axis ``depth``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field

from buttress.config import STUDIES, ComponentSpec, Spec
from buttress.errors import UserError
from buttress.results.study_result import StudyFigure
from buttress.training.recipe import recipe_variants

# smoke: seconds, checks that the parts fit; digits: a real experiment on the bundled images in
# minutes; mini: narrow models on a part of CIFAR-10; paper: the published setting.
Scale = Literal["smoke", "digits", "mini", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


def parse_scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name.lower():
            return scale
    raise UserError(f"--scale must be one of {', '.join(SCALES)}, but got {name!r}")


def value_at_scale(value: Any, scale: Scale) -> Any:
    """The value for a scale, from ``value`` or ``{smoke: ..., mini: ..., paper: ...}``.

    Inside a mapping of other keys each value may differ by scale. A scale that is left out takes
    the value of the next larger one, so that what is written for `paper` alone holds everywhere.
    """
    if not isinstance(value, Mapping):
        return value
    if not varies_by_scale(value):
        return {key: value_at_scale(item, scale) for key, item in value.items()}
    this_and_larger = SCALES[SCALES.index(scale) :]
    for candidate in (*this_and_larger, *reversed(SCALES[: SCALES.index(scale)])):
        if candidate in value:
            return value[candidate]
    return None


def varies_by_scale(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(SCALES)


FROM_STUDY = "from_study"  # an axis of another study: ``architecture: {from_study: table1}``


class RunSettings(Spec):
    """Settings of a run; later ones override, `overrides` add up."""

    model: str | None = None
    model_args: dict[str, Any] = Field(default_factory=dict)
    dataset: str | None = None
    train_limit: int | None = Field(default=None, ge=1)  # number of training images
    recipe: str | None = None
    overrides: tuple[str, ...] = ()  # key=value changes of the recipe
    init_from: dict[str, str] | None = None  # labels of the run that provides initial weights
    attributes: dict[str, str | float] = Field(default_factory=dict)  # that claims may refer to


class ColumnSpec(Spec):
    """One measured column: a value of the runs with some labels."""

    where: dict[str, str] = Field(default_factory=dict)  # axis -> label; the other axes are rows
    title: str = ""  # in tables and figures; made from the name if empty
    # An attack of the suite, clean, corruptions, parameters_m, gmacs ...; null: not computed.
    metric: Annotated[str, BeforeValidator(lambda raw: "" if raw is None else raw)] = "worst_case"
    suite: str = ""  # the first of the study if empty
    checkpoint: Literal["best", "last"] = "best"
    analysis: str = ""  # instead of a suite: an analysis with a value at the path ``metric``
    unit: Literal["percent", "number"] = "percent"
    higher_is_better: bool = True


TITLE_WORDS = {
    "aa": "AutoAttack", "apgd": "APGD", "at": "AT", "ce": "CE", "cw": "CW", "fgsm": "FGSM",
    "gmacs": "GMACs", "l1": "L1", "l2": "L2", "linf": "Linf", "pgd": "PGD", "trades": "TRADES",
}  # fmt: skip


def column_title(name: str, column: ColumnSpec) -> str:
    """Title of a column in words: ``pgd20_best`` is ``PGD-20 best``."""
    if column.title:
        return column.title
    if column.metric == "parameters_m":
        return "Parameters (M)"
    words = [re.sub(r"^(pgd|gama)(\d+)$", lambda m: f"{m[1].upper()}-{m[2]}", word)
             for word in name.split("_")]  # fmt: skip
    title = " ".join(TITLE_WORDS.get(word, word) for word in words)
    return title[0].upper() + title[1:]


class AnalysisRows(Spec):
    """Rows that are not runs: a list in the result of a group analysis."""

    analysis: str
    path: str  # of the list in the result
    row_fields: tuple[str, ...] = Field(min_length=1)  # fields of an item that name its row


def _as_tuple(raw: object) -> object:
    return (raw,) if isinstance(raw, (str, Mapping)) else raw


LabelTuple = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class PublishedTable(Spec):
    """The published table: a CSV file beside the study, percent in its columns."""

    file: str
    rows: dict[str, str]  # axis or attribute -> the CSV column that holds its values
    filter: dict[str, LabelTuple] = Field(default_factory=dict)  # CSV column -> values to use
    columns: dict[str, str] = Field(default_factory=dict)  # ours -> theirs, where names differ
    notes: tuple[str, ...] = ()


class OtherTable(Spec):
    """A table by other authors on which claims of this study can be checked too.

    Without a ``file`` it is used only if the user has it: ``study report --table NAME=FILE``.
    """

    file: str = ""
    source: str
    rows: tuple[str, ...] = Field(min_length=1)  # CSV columns that name a row; all are attributes
    columns: dict[str, str]  # ours -> theirs
    filter: dict[str, LabelTuple] = Field(default_factory=dict)  # CSV column -> values to use
    limits: str  # what differs from the setting of the study


class OtherCheck(Spec):
    """A claim checked on a table by other authors."""

    table: str  # of `other_tables` of the study
    predicate: ComponentSpec | None = None  # where rows or columns of that table differ
    limits: str = ""  # of this check alone


class ClaimSpec(Spec):
    """A claim: a statement that the measured table can decide."""

    id: str
    statement: str
    predicate: ComponentSpec  # a predicate by name, with its arguments
    published: str = ""  # what is known where no table is published: "text only", "figure only"
    other_tables: tuple[OtherCheck, ...] = ()


def _parse_component(raw: object) -> object:
    """``sparsity`` or ``{lipschitz: {steps: 10}}`` or ``{name: ..., args: ...}``."""
    if isinstance(raw, str):
        return {"name": raw}
    if isinstance(raw, Mapping) and len(raw) == 1 and "name" not in raw:
        ((name, args),) = raw.items()
        return {"name": name, "args": args or {}}
    return raw


AnalysisUse = Annotated[ComponentSpec, BeforeValidator(_parse_component)]


def _parse_axis_options(raw: object) -> object:
    """Parse the labels of an axis; a list is labels without settings."""
    return {str(label): {} for label in raw} if isinstance(raw, (list, tuple)) else raw


AxisOptions = Annotated[dict[str, RunSettings], BeforeValidator(_parse_axis_options)]
AnalysisRowsTuple = Annotated[tuple[AnalysisRows, ...], BeforeValidator(_as_tuple)]


class ScaledStudy(Spec):
    renamed_keys: ClassVar[Mapping[str, str]] = {
        "limit": "`train_limit`",
        "set": "`overrides`",
        "start": "`init_from`",
        "of": "`metric` (`path` in `analysis_rows`)",
        "rows": "`row_fields`",
        "which": "`checkpoint`",
        "only": "`labels`",
        "leave_out": "`exclude`",
        "last_too": "`evaluate_last`",
        "together": "`group_analyses`",
        "listed": "`analysis_rows`",
        "as_in": f"`{FROM_STUDY}`",
    }

    base: RunSettings = RunSettings()
    axes: dict[str, AxisOptions] = Field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # axis -> labels to run
    exclude: tuple[dict[str, LabelTuple], ...] = ()  # combinations not to run; `seed` too
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    suites: tuple[str, ...] = ()
    evaluate_last: bool = False  # evaluate the last epoch beside the best
    test_limit: int | None = Field(default=None, ge=1)
    analyses: tuple[AnalysisUse, ...] = ()  # of every run
    group_analyses: tuple[AnalysisUse, ...] = ()  # of all runs at once, or of none
    analysis_rows: AnalysisRowsTuple = ()  # rows of the table that are not runs
    columns: dict[str, ColumnSpec] = Field(default_factory=dict)


class StudySpec(Spec):
    """A study file."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "about": "`description`",
        "says": "`statement`",
        "test": "`predicate`",
        "only": "`filter`",
    }

    name: str
    title: str = ""
    question: str
    source: str = ""
    description: str = ""  # differences from the publication
    published: PublishedTable | None = None
    other_tables: dict[str, OtherTable] = Field(default_factory=dict)
    claims: tuple[ClaimSpec, ...] = ()
    figures: tuple[StudyFigure, ...] = ()
    scales: tuple[Scale, ...] = Field(default=("smoke", "mini", "paper"), min_length=1)
    grid: dict[str, Any]  # `ScaledStudy`, with values by scale

    @property
    def display_name(self) -> str:
        """Name in messages."""
        return f"study {self.name}"

    def choose_scale(self, name: str | None) -> Scale:
        """A scale by name; None is the smallest of the study."""
        return self.scales[0] if name is None else self.check_scale(parse_scale(name))

    def check_scale(self, scale: Scale) -> Scale:
        if scale not in self.scales:
            scales = ", ".join(self.scales)
            raise UserError(f"{self.display_name} has no scale {scale}; choose from {scales}")
        return scale

    def at_scale(self, scale: Scale) -> ScaledStudy:
        """The study at one scale, fully checked."""
        self.check_scale(scale)
        full_grid = self._full_grid(scale)
        return full_grid.model_copy(update={"axes": _select_labels(full_grid, self.display_name)})

    def all_labels(self, scale: Scale) -> dict[str, set[str]]:
        """All labels of each axis, also those that a scale excludes."""
        return {axis: set(options) for axis, options in self._full_grid(scale).axes.items()}

    def _full_grid(self, scale: Scale) -> ScaledStudy:
        """With every label of every axis."""
        source = f"{self.display_name} at scale {scale}"
        return ScaledStudy.parse(
            value_at_scale(_resolve_shared_axes(self.grid, source), scale), source
        )


def _resolve_shared_axes(grid: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The grid with the axes of other studies in place of ``{from_study: name}``."""
    axes = grid.get("axes")
    if not isinstance(axes, Mapping):
        return dict(grid)
    resolved = {}
    for axis, options in axes.items():
        resolved[axis] = options
        if isinstance(options, Mapping) and isinstance(options.get(FROM_STUDY), str):
            other_axes = load_study(options[FROM_STUDY]).grid.get("axes", {})
            if axis not in other_axes:
                raise UserError(
                    f"{source}: axis {axis!r} refers to study "
                    f"{options[FROM_STUDY]}, "
                    "which has no such axis"
                )
            resolved[axis] = other_axes[axis]
    return {**grid, "axes": resolved}


def _select_labels(scaled: ScaledStudy, source: str) -> dict[str, dict[str, RunSettings]]:
    """The axes with the labels that this scale has."""
    for axis, labels in scaled.labels.items():
        missing = [label for label in labels if label not in scaled.axes.get(axis, {})]
        if missing or axis not in scaled.axes:
            raise UserError(
                f"{source}: `labels` selects {axis} {missing}, but `axes` has no such axis or label"
            )
    return {
        axis: {
            label: v for label, v in options.items() if label in scaled.labels.get(axis, options)
        }
        for axis, options in scaled.axes.items()
    }


def list_studies() -> list[str]:
    return STUDIES.names()


def load_study(name: str | Path) -> StudySpec:
    """Load a study by name or from a YAML file.

    ``NAME:VARIANT`` is a bundled study with the variant of each recipe that has it (``thesis``).
    """
    base, colon, variant = str(name).rpartition(":")
    is_variant = colon and not isinstance(name, Path) and base in list_studies()
    preset = base if is_variant else name
    source, content = STUDIES.load(preset)
    if not isinstance(content, dict):
        raise UserError(
            f"{source}: a study file must be a mapping of keys, but got {type(content).__name__}"
        )
    study = _find_tables(StudySpec.parse(content, source), STUDIES.path(preset).parent)
    return with_recipe_variant(study, variant) if is_variant else study


def _find_tables(study: StudySpec, folder: Path) -> StudySpec:
    """The study with the paths of tables that are beside its file; others are bundled."""

    def paths(table: PublishedTable | OtherTable) -> dict[str, str]:
        path = (folder / table.file).resolve()
        return {"file": str(path)} if table.file and path.is_file() else {}

    published = study.published and study.published.model_copy(update=paths(study.published))
    others = {
        name: table.model_copy(update=paths(table)) for name, table in study.other_tables.items()
    }
    return study.model_copy(update={"published": published, "other_tables": others})


def with_recipe_variant(study: StudySpec, variant: str) -> StudySpec:
    """The study with the variant of each recipe that has it, under a name of its own."""
    grid = _replace_recipes(study.grid, variant)
    if grid == study.grid:
        raise UserError(f"{study.display_name} has no recipe with a variant {variant!r}")
    title = f"{study.title} ({variant})" if study.title else ""
    return study.model_copy(
        update={"name": f"{study.name}-{variant}", "title": title, "grid": grid}
    )


def _replace_recipes(value: Any, variant: str, is_recipe: bool = False) -> Any:
    """A copy of a part of a grid with variants in place of recipes."""
    if isinstance(value, Mapping):
        return {
            k: _replace_recipes(v, variant, is_recipe or k == "recipe") for k, v in value.items()
        }
    if not is_recipe or not isinstance(value, str):
        return value
    base, colon, old = value.partition(":")
    name = f"{old}-{variant}" if colon else variant
    return f"{base}:{name}" if name in recipe_variants(base) else value
