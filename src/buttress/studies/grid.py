"""The runs of a study at one scale: every combination of its axes, as run specs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path

import torch

from buttress.analysis.core import ANALYSES
from buttress.config import ComponentSpec
from buttress.data import dataset_facts
from buttress.errors import UserError
from buttress.evaluation.suite import SuiteTarget, load_suite, resolve_suite
from buttress.models.core import is_known
from buttress.models.cost import SkipInitialization
from buttress.results.run_spec import Recipe, RunSpec
from buttress.results.study_result import study_result_path
from buttress.studies.claims import CLAIMS
from buttress.studies.spec import RunSettings, Scale, ScaledStudy, StudySpec
from buttress.system.files import safe_file_name
from buttress.threats import NormBall, Threat
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

    @cached_property
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


def expand_study(study: StudySpec, scale: Scale, dataset: str | None = None) -> ExpandedStudy:
    """Expand the grid to runs; invalid names and keys raise before any run starts.

    With ``dataset`` every run is trained and evaluated on it instead of the study's dataset.
    """
    scaled = study.at_scale(scale)
    _check_references(study, scaled, scale)
    builder = GridBuilder(scaled, study.display_name, dataset)
    has_runs = scaled.base.model is not None or any(
        setting.model for options in scaled.axes.values() for setting in options.values()
    )
    if has_runs:
        builder.add_all()
    if dataset is not None:
        study = _on_dataset(study, builder.own_datasets, dataset)
    runs = tuple(builder.runs.values())
    _check_runs(runs, scaled)
    return ExpandedStudy(study, scale, scaled, runs)


def _on_dataset(study: StudySpec, own_datasets: Collection[str], dataset: str) -> StudySpec:
    """The study under the name and with the description that its runs on a dataset have."""
    if len(own_datasets) != 1:
        count = f"{len(own_datasets)} datasets ({', '.join(own_datasets)})"
        raise UserError(
            "--data replaces the only dataset of a study, but "
            f"{study.display_name} has {count if own_datasets else 'none'}"
        )
    own = ", ".join(own_datasets)
    note = f"Run on {dataset}; published numbers and claims are about {own}."
    update = {
        "name": f"{study.name}-{safe_file_name(dataset)}",
        "description": f"{study.description} {note}".strip(),
    }
    return study.model_copy(update=update)


def _rescale_eps(recipe: Recipe, dataset: str, new_dataset: str) -> Recipe:
    """The recipe with eps in the same ratio to the standard eps of another dataset."""
    if recipe.threat is None:
        return recipe
    threat = Threat.parse(recipe.threat)
    if not isinstance(threat, NormBall):
        sizes = [dataset_facts(name).shape[1] for name in (dataset, new_dataset)]
        usual = [threat.usual_budget(threat.kind, size) for size in sizes]
        is_usual = threat.budget == usual[0]
        update = f"{threat.kind}:{usual[1]}" if is_usual else str(threat)
        return recipe.model_copy(update={"threat": update})
    budgets = [dataset_facts(name).budgets.get(threat.norm) for name in (dataset, new_dataset)]
    if None in budgets:
        raise UserError(
            f"--data {new_dataset}: there is no standard eps in {threat.norm} for {dataset} or "
            f"{new_dataset} to choose eps of training by; edit a copy of the study file instead"
        )
    old, new = (float(eps or 0) for eps in budgets)
    return recipe.model_copy(update={"threat": str(threat.scaled(new / old))})


RunId = tuple[tuple[tuple[str, str], ...], int]  # labels and seed
SEED = "seed"  # in `exclude` and `--only`, beside the axes: ``{training: vanilla, seed: ["1"]}``


class GridBuilder:
    """Builds the runs of a grid, each after the run of its initial weights."""

    def __init__(self, scaled: ScaledStudy, source: str, dataset: str | None) -> None:
        self.scaled, self.source, self.dataset = scaled, source, dataset
        self.runs: dict[RunId, GridRun] = {}
        self.own_datasets: dict[str, None] = {}  # of the study file, in order

    def add_all(self) -> None:
        """Add all combinations of labels and seeds but the excluded ones."""
        for labels in product(*self.scaled.axes.values()):
            run_labels = dict(zip(self.scaled.axes, labels, strict=True))
            for seed in self.scaled.seeds:
                if not _is_excluded({**run_labels, SEED: str(seed)}, self.scaled):
                    self.add(run_labels, seed)

    def add(
        self, labels: Mapping[str, str], seed: int, dependents: tuple[RunId, ...] = ()
    ) -> GridRun:
        """Add the run with these labels; ``dependents`` are the runs that start from it."""
        run_id = (tuple(sorted(labels.items())), seed)
        if run_id in self.runs:
            return self.runs[run_id]
        source = f"{self.source}, {labels_text(labels)}"
        if run_id in dependents:
            raise UserError(f"{source}: `init_from` forms a cycle")
        setting = fill_labels(merge_settings(labels, self.scaled), labels)
        init_key = None
        if setting.init_from is not None:
            init_labels = self._check_labels({**labels, **setting.init_from}, source)
            init_key = self.add(init_labels, seed, (*dependents, run_id)).key
        first_seed_run = self.runs.get((run_id[0], self.scaled.seeds[0]))
        try:
            spec = self._resolve(setting) if first_seed_run is None else first_seed_run.spec
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        initial_weights = None if init_key is None else f"run:{init_key}"
        spec = spec.model_copy(update={"seed": seed, "initial_weights": initial_weights})
        self.runs[run_id] = GridRun(dict(labels), seed, spec, init_key)
        return self.runs[run_id]

    def _check_labels(self, labels: Mapping[str, str], source: str) -> Mapping[str, str]:
        for axis, label in labels.items():
            if label not in self.scaled.axes.get(axis, {}):
                raise UserError(
                    f"{source}: `init_from` refers to label {label} of axis {axis}, which is not "
                    "in the study"
                )
        return labels

    def _resolve(self, setting: RunSettings) -> RunSpec:
        if setting.model is None or setting.dataset is None or setting.recipe is None:
            raise UserError("every run needs `model`, `dataset` and `recipe`")
        load = _load_bundled_recipe if setting.recipe in list_recipes() else load_recipe
        recipe = load(setting.recipe, setting.overrides)
        self.own_datasets[setting.dataset] = None
        if self.dataset is not None:
            recipe = _rescale_eps(recipe, setting.dataset, self.dataset)
        return resolve_run_spec(
            setting.model,
            self.dataset or setting.dataset,
            recipe,
            limit=setting.train_limit,
            model_args=setting.model_args,
        )


def _check_runs(runs: Collection[GridRun], scaled: ScaledStudy) -> None:
    """Check that the suites fit the datasets, and the models their images."""
    for dataset in dict.fromkeys(run.spec.dataset for run in runs):
        facts = dataset_facts(dataset)
        for suite in scaled.suites:
            target = SuiteTarget(facts.budgets, facts.shape[1], dataset)
            resolve_suite(load_suite(suite), target)
    for run in runs:
        check_model_args(run.spec)


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
    for analysis in scaled.analyses:
        if ANALYSES.spec(analysis.name).subject != "run":
            raise UserError(
                f"{source}: `analyses` must be of single runs, but {analysis.name} is not; "
                "list it in `group_analyses`"
            )
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
        if column.metric and column.suite and column.suite not in scaled.suites:
            raise UserError(
                f"{source}: column {name} uses suite {column.suite}, which is missing from `suites`"
            )
    for claim in study.claims:
        _check_columns(source, claim.id, claim.predicate, scaled.columns)
        for check in claim.other_tables:
            if check.table not in study.other_tables:
                raise UserError(
                    f"{source}: claim {claim.id} refers to table {check.table!r}, which is not "
                    "defined in `other_tables`"
                )
            predicate = check.predicate or claim.predicate
            _check_columns(source, claim.id, predicate, study.other_tables[check.table].columns)


def _check_columns(
    source: str, claim: str, predicate: ComponentSpec, columns: Collection[str]
) -> None:
    for column in CLAIMS.create(predicate.name, predicate.args).columns():
        if column not in columns:
            raise UserError(
                f"{source}: claim {claim} refers to column {column!r}, which is not defined in "
                "`columns`"
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
    """Replace axes and attributes in braces by the run's labels and attributes."""

    def fill(text: str) -> str:
        for name, value in {**setting.attributes, **labels}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    changes = {
        "model": None if setting.model is None else fill(setting.model),
        "recipe": None if setting.recipe is None else fill(setting.recipe),
        "overrides": tuple(map(fill, setting.overrides)),
    }
    return setting.model_copy(update=changes)


@lru_cache(maxsize=256)
def _load_bundled_recipe(recipe: str, changes: tuple[str, ...]) -> Recipe:
    """Load a recipe, cached."""
    return load_recipe(recipe, changes)


def _is_excluded(run_labels: Mapping[str, str], scaled: ScaledStudy) -> bool:
    return any(
        all(run_labels.get(axis) in labels for axis, labels in combination.items())
        for combination in scaled.exclude
    )


def run_label(run: GridRun, scaled: ScaledStudy, *, with_seed: bool = True) -> str:
    """Labels of a run, with its seed where the study has several."""
    seed = [f"seed {run.seed}"] if with_seed and len(scaled.seeds) > 1 else []
    return " / ".join([*run.labels.values(), *seed]) or run.spec.model_name


def labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {label}" for axis, label in labels.items()) or "its only run"


LabelFilter = Mapping[str, tuple[str, ...]]  # axis -> labels


def parse_label_filter(texts: Iterable[str], expanded: ExpandedStudy) -> LabelFilter:
    """Parse ``architecture=VGG,ResNet`` to an axis and its labels; ``seed`` is an axis too."""
    labels_by_axis: dict[str, Collection[str]] = {
        **expanded.scaled.axes, SEED: [str(seed) for seed in expanded.scaled.seeds]
    }  # fmt: skip
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
        run_labels = {SEED: str(run.seed), **run.labels}
        if all(run_labels.get(axis) in labels for axis, labels in label_filter.items()):
            key: str | None = run.key
            while key is not None and key not in keys:
                keys.add(key)
                key = by_key[key].init_key
    return [run for run in runs if run.key in keys]
