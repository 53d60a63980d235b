"""The runs of a study at one scale: every combination of its axes, as run specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import torch

from buttress.analysis.core import ANALYSES
from buttress.data import dataset_facts
from buttress.errors import UserError
from buttress.evaluation.suite import load_suite, resolve_suite
from buttress.models.core import is_known
from buttress.models.cost import SkipInitialization
from buttress.results.run_spec import Recipe, RunSpec
from buttress.results.study_result import study_result_path
from buttress.studies.claims import CLAIMS
from buttress.studies.spec import RunSettings, Scale, ScaledStudy, StudySpec
from buttress.training.cost import run_model_cost
from buttress.training.recipe import list_recipes, load_recipe
from buttress.training.train import build_model, resolve_run_spec


@dataclass(frozen=True)
class GridRun:
    """One run of a study: its labels and its specification."""

    labels: Mapping[str, str]  # axis -> label
    seed: int
    spec: RunSpec
    init_key: str | None = None  # key of the run that provides its initial weights

    @property
    def key(self) -> str:
        return self.spec.key()


@dataclass(frozen=True)
class ExpandedStudy:
    """A study at one scale with all runs of its grid."""

    study: StudySpec
    scale: Scale
    scaled: ScaledStudy
    runs: tuple[GridRun, ...]

    @property
    def name(self) -> str:
        return self.study.name

    def result_path(self, root: Path) -> Path:
        """File of its answer; group analyses are beside it."""
        return study_result_path(root, self.name, self.scale)


def expand_study(study: StudySpec, scale: Scale) -> ExpandedStudy:
    """Expand the grid to runs; invalid names and keys raise before any run starts."""
    scaled = study.at_scale(scale)
    _check_references(study, scaled, scale)
    has_runs = scaled.base.model is not None or any(
        setting.model for options in scaled.axes.values() for setting in options.values()
    )
    runs = _expand_grid(scaled, study.display_name) if has_runs else ()
    return ExpandedStudy(study, scale, scaled, runs)


def _expand_grid(scaled: ScaledStudy, source: str) -> tuple[GridRun, ...]:
    """All combinations of labels and seeds, checked."""
    runs: dict[tuple[tuple[tuple[str, str], ...], int], GridRun] = {}
    axis_names = list(scaled.axes)
    for labels in product(*scaled.axes.values()):
        run_labels = dict(zip(axis_names, labels, strict=True))
        if _is_excluded(run_labels, scaled):
            continue
        for seed in scaled.seeds:
            _add_run(runs, run_labels, seed, scaled, source)
    for dataset in dict.fromkeys(run.spec.dataset for run in runs.values()):
        for suite in scaled.suites:
            resolve_suite(load_suite(suite), dataset_facts(dataset).budgets, dataset)
    for run in runs.values():
        check_model_args(run.spec)
    return tuple(runs.values())


def check_model_args(spec: RunSpec) -> None:
    """Build the model without memory for weights, to check its arguments."""
    if is_known(spec.model):
        run_model_cost(spec)  # which is computed once for each model, and needed for plans
        return
    with torch.device("meta"), SkipInitialization():
        build_model(spec)


def _check_references(study: StudySpec, scaled: ScaledStudy, scale: Scale) -> None:
    """Check the names of analyses, claims, columns and suites."""
    source, labels = study.display_name, study.all_labels(scale)
    for analysis in (*scaled.analyses, *scaled.group_analyses):
        ANALYSES.entry(analysis.name)
    for rows in scaled.analysis_rows:
        if rows.analysis not in [analysis.name for analysis in scaled.group_analyses]:
            raise UserError(
                f"{source}: `analysis_rows` refers to analysis {rows.analysis}, which is missing "
                "from `group_analyses`"
            )
    for name, column in scaled.columns.items():
        for axis, label in column.where.items():
            if label not in labels.get(axis, ()):
                raise UserError(
                    f"{source}: column {name} selects label {label} of axis {axis}, which does not "
                    "exist"
                )
        if column.suite and column.suite not in scaled.suites:
            raise UserError(
                f"{source}: column {name} uses suite {column.suite}, which is missing from `suites`"
            )
    for claim in study.claims:
        predicate = CLAIMS.create(claim.predicate.name, claim.predicate.args)
        if unknown_columns := [c for c in predicate.columns() if c not in scaled.columns]:
            raise UserError(
                f"{source}: claim {claim.id} refers to column {unknown_columns[0]!r}, which is not "
                "defined in `columns`"
            )


def merge_settings(labels: Mapping[str, str], scaled: ScaledStudy) -> RunSettings:
    """Settings of a run: the base, then the settings of its label on each axis."""
    settings = [scaled.base, *(scaled.axes[axis][label] for axis, label in labels.items())]
    set_fields = [p.model_dump(exclude_defaults=True) for p in settings]
    merged = {key: value for fields in set_fields for key, value in fields.items()}
    for key in ("model_args", "attributes"):
        merged[key] = {k: v for fields in set_fields for k, v in fields.get(key, {}).items()}
    merged["overrides"] = tuple(o for fields in set_fields for o in fields.get("overrides", ()))
    return RunSettings.model_validate(merged)


def fill_labels(setting: RunSettings, labels: Mapping[str, str]) -> RunSettings:
    """Replace axes in braces by the run's labels."""

    def fill(text: str) -> str:
        for axis, label in labels.items():
            text = text.replace(f"{{{axis}}}", label)
        return text

    model = None if setting.model is None else fill(setting.model)
    overrides = tuple(map(fill, setting.overrides))
    return setting.model_copy(update={"model": model, "overrides": overrides})


def _add_run(
    runs: dict[tuple[tuple[tuple[str, str], ...], int], GridRun],
    labels: Mapping[str, str],
    seed: int,
    scaled: ScaledStudy,
    study_name: str,
) -> GridRun:
    """Add the run with these labels, after the run of its initial weights."""
    run_id = (tuple(sorted(labels.items())), seed)
    if run_id in runs:
        return runs[run_id]
    setting = fill_labels(merge_settings(labels, scaled), labels)
    source = f"{study_name}, {labels_text(labels)}"
    if setting.model is None or setting.dataset is None or setting.recipe is None:
        raise UserError(f"{source}: every run needs `model`, `dataset` and `recipe`")
    init_run = None
    if setting.init_from is not None:
        init_run = _add_run(
            runs, _init_labels(setting.init_from, labels, scaled, source), seed, scaled, study_name
        )
    first_seed_run = runs.get((run_id[0], scaled.seeds[0]))
    try:
        spec = _resolve_run_spec(setting) if first_seed_run is None else first_seed_run.spec
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    spec = spec.model_copy(update={"seed": seed, "initial_weights": None})
    if init_run is not None:
        spec = spec.model_copy(update={"initial_weights": f"run:{init_run.key}"})
    runs[run_id] = GridRun(dict(labels), seed, spec, None if init_run is None else init_run.key)
    return runs[run_id]


def _resolve_run_spec(setting: RunSettings) -> RunSpec:
    assert setting.model is not None
    assert setting.dataset is not None
    assert setting.recipe is not None
    shipped = setting.recipe in list_recipes()
    recipe = (_load_bundled_recipe if shipped else load_recipe)(setting.recipe, setting.overrides)
    return resolve_run_spec(
        setting.model,
        setting.dataset,
        recipe,
        limit=setting.train_limit,
        model_args=setting.model_args,
    )


@lru_cache(maxsize=256)
def _load_bundled_recipe(recipe: str, changes: tuple[str, ...]) -> Recipe:
    """Load a recipe, cached."""
    return load_recipe(recipe, changes)


def _init_labels(
    init_from: Mapping[str, str], labels: Mapping[str, str], scaled: ScaledStudy, source: str
) -> dict[str, str]:
    """Labels of the run that provides the initial weights."""
    target = {**labels, **init_from}
    for axis, label in target.items():
        if label not in scaled.axes.get(axis, {}):
            raise UserError(
                f"{source}: `init_from` refers to label {label} of axis {axis}, which is not in "
                "the study"
            )
    if _is_cycle(target, [dict(labels)], scaled):
        raise UserError(f"{source}: `init_from` forms a cycle")
    return target


def _is_cycle(labels: dict[str, str], visited: list[dict[str, str]], scaled: ScaledStudy) -> bool:
    """Whether following ``init_from`` leads back to a visited run."""
    while labels not in visited:
        visited.append(labels)
        init = merge_settings(labels, scaled).init_from
        if init is None or any(b not in scaled.axes.get(a, {}) for a, b in init.items()):
            return False
        labels = {**labels, **init}
    return True


def _is_excluded(run_labels: Mapping[str, str], scaled: ScaledStudy) -> bool:
    return any(
        all(run_labels.get(axis) in labels for axis, labels in combination.items())
        for combination in scaled.exclude
    )


def labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {label}" for axis, label in labels.items()) or "its only run"


LabelFilter = Mapping[str, tuple[str, ...]]  # axis -> labels


def parse_label_filter(texts: Iterable[str], expanded: ExpandedStudy) -> LabelFilter:
    """Parse ``architecture=VGG,ResNet`` to an axis and its labels."""
    labels_by_axis = expanded.scaled.axes
    selected: dict[str, tuple[str, ...]] = {}
    for text in texts:
        axis, _, label_text = text.partition("=")
        labels = tuple(label.strip() for label in label_text.split(",") if label.strip())
        if axis not in labels_by_axis or not labels:
            axes = ", ".join(labels_by_axis) or "none"
            raise UserError(
                f"--only must be AXIS=LABEL,... with AXIS one of {axes}, but got {text!r}"
            )
        if unknown_labels := [label for label in labels if label not in labels_by_axis[axis]]:
            raise UserError(
                f"--only: axis {axis} has no label {unknown_labels[0]!r} in study {expanded.name} "
                f"at scale {expanded.scale}; choose from {', '.join(labels_by_axis[axis])}"
            )
        selected[axis] = (*selected.get(axis, ()), *labels)
    return selected


def select_runs(runs: Sequence[GridRun], label_filter: LabelFilter) -> list[GridRun]:
    """Select the runs with these labels and all runs that provide their initial weights."""
    by_key = {run.key: run for run in runs}
    keys: set[str | None] = set()
    for run in runs:
        if all(run.labels.get(axis) in labels for axis, labels in label_filter.items()):
            key: str | None = run.key
            while key is not None and key not in keys:
                keys.add(key)
                key = by_key[key].init_key
    return [run for run in runs if run.key in keys]
