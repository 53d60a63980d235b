"""The runs of a study at one scale: every combination of its axes, as run specs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch

from buttress.analysis.core import ANALYSES
from buttress.data import facts_of
from buttress.errors import UserError
from buttress.evaluation.suite import load_suite, resolve_suite
from buttress.models import create_model
from buttress.models.on_paper import Undrawn
from buttress.records.spec import Recipe, RunSpec
from buttress.study.claims import CLAIMS
from buttress.study.scales import Scale
from buttress.study.spec import Scaled, Setting, StudySpec
from buttress.training.recipe import list_recipes, load_recipe
from buttress.training.train import resolve

SEED = "seed"


@dataclass(frozen=True)
class Cell:
    """One run of a study: its place in the grid and what it is."""

    labels: Mapping[str, str]  # axis -> label
    seed: int
    spec: RunSpec
    source: str | None = None  # the key of the run whose weights it begins with

    @property
    def key(self) -> str:
        return self.spec.key()


def cells_of(study: StudySpec, scale: Scale) -> list[Cell]:
    """Every run of the grid; a wrong name or key is found here, before the first starts."""
    scaled = study.scaled(scale)
    _check(study, scaled, scale)
    if scaled.base.model is None and not any(
        setting.model for options in scaled.axes.values() for setting in options.values()
    ):
        return []  # a study of formulas
    found: dict[tuple[tuple[tuple[str, str], ...], int], Cell] = {}
    names = list(scaled.axes)
    for labels in product(*scaled.axes.values()):
        place = dict(zip(names, labels, strict=True))
        if _is_left_out(place, scaled):
            continue
        for seed in scaled.seeds:
            _add(found, place, seed, scaled, study.called)
    for dataset in dict.fromkeys(cell.spec.dataset for cell in found.values()):
        for suite in scaled.suites:
            resolve_suite(load_suite(suite), facts_of(dataset).budgets, dataset)
    for cell in found.values():
        check_model(cell.spec)
    return list(found.values())


def check_model(spec: RunSpec) -> None:
    """Builds the network without memory for its weights, so that a wrong argument is found."""
    options = json.dumps(spec.model_args, sort_keys=True)
    _check_network(spec.model, spec.num_classes, spec.image_size, spec.in_channels, options)


@lru_cache(maxsize=4096)  # a study has few networks and many runs
def _check_network(model: str, classes: int, size: int, channels: int, options: str) -> None:
    with torch.device("meta"), Undrawn():
        create_model(
            model, num_classes=classes, image_size=size, in_channels=channels,
            options=json.loads(options),
        )  # fmt: skip


def _check(study: StudySpec, scaled: Scaled, scale: Scale) -> None:
    """Names of analyses, claims and columns; suites are tried with the runs' data sets."""
    where, labels = study.called, study.labels(scale)
    for use in (*scaled.analyses, *scaled.together):
        ANALYSES.entry(use.name)
    for listed in scaled.listed:
        if listed.analysis not in [use.name for use in scaled.together]:
            raise UserError(f"{where}: its rows are listed by {listed.analysis}, not in together")
    for name, column in scaled.columns.items():
        for axis, label in column.where.items():
            if label not in labels.get(axis, ()):
                raise UserError(f"{where}: column {name} is at {axis} {label}, which is not there")
        if column.suite and column.suite not in scaled.suites:
            raise UserError(f"{where}: column {name} needs the suite {column.suite}, not in suites")
    for claim in study.claims:
        predicate = CLAIMS.create(claim.test.name, claim.test.args)
        if strange := [c for c in predicate.columns() if c not in scaled.columns]:
            raise UserError(f"{where}: claim {claim.id} is about {strange[0]!r}, not a column")


def merged(place: Mapping[str, str], scaled: Scaled) -> Setting:
    """The description of a run: the base, then what its label on each axis changes."""
    parts = [scaled.base, *(scaled.axes[axis][label] for axis, label in place.items())]
    given = [p.model_dump(exclude_defaults=True) for p in parts]
    whole = {key: value for part in given for key, value in part.items()}
    for key in ("model_args", "attributes"):
        whole[key] = {k: v for part in given for k, v in part.get(key, {}).items()}
    whole["set"] = tuple(change for part in given for change in part.get("set", ()))
    return Setting.model_validate(whole)


def filled(setting: Setting, place: Mapping[str, str]) -> Setting:
    """The description with the run's labels where it names an axis in braces."""

    def fill(text: str) -> str:
        for axis, label in place.items():
            text = text.replace(f"{{{axis}}}", label)
        return text

    model = None if setting.model is None else fill(setting.model)
    return setting.model_copy(update={"model": model, "set": tuple(map(fill, setting.set))})


def _add(
    found: dict[tuple[tuple[tuple[str, str], ...], int], Cell],
    place: Mapping[str, str],
    seed: int,
    scaled: Scaled,
    name: str,
) -> Cell:
    """The cell at a place; a run that it begins with comes before it."""
    known = (tuple(sorted(place.items())), seed)
    if known in found:
        return found[known]
    setting = filled(merged(place, scaled), place)
    where = f"{name}, {describe(place)}"
    if setting.model is None or setting.dataset is None or setting.recipe is None:
        raise UserError(f"{where}: a run needs a model, a dataset and a recipe")
    source = None
    if setting.start is not None:
        source = _add(found, _checked(setting.start, place, scaled, where), seed, scaled, name)
    twin = found.get((known[0], scaled.seeds[0]))
    try:
        spec = _resolved(setting) if twin is None else twin.spec
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    spec = spec.model_copy(update={"seed": seed, "start": None})
    if source is not None:
        spec = spec.model_copy(update={"start": f"run:{source.key}"})
    found[known] = Cell(dict(place), seed, spec, None if source is None else source.key)
    return found[known]


def _resolved(setting: Setting) -> RunSpec:
    assert setting.model is not None
    assert setting.dataset is not None
    assert setting.recipe is not None
    shipped = setting.recipe in list_recipes()
    recipe = (_shipped if shipped else load_recipe)(setting.recipe, setting.set)
    return resolve(
        setting.model, setting.dataset, recipe, limit=setting.limit, model_args=setting.model_args
    )


@lru_cache(maxsize=256)
def _shipped(recipe: str, changes: tuple[str, ...]) -> Recipe:
    """A recipe that comes with Buttress, read once."""
    return load_recipe(recipe, changes)


def _checked(
    start: Mapping[str, str], place: Mapping[str, str], scaled: Scaled, where: str
) -> dict[str, str]:
    """The place of the run that another begins with."""
    target = {**place, **start}
    for axis, label in target.items():
        if label not in scaled.axes.get(axis, {}):
            raise UserError(f"{where}: it begins with {axis} {label}, which is not in the study")
    if _leads_back(target, [dict(place)], scaled):
        raise UserError(f"{where}: a run cannot begin with itself")
    return target


def _leads_back(place: dict[str, str], seen: list[dict[str, str]], scaled: Scaled) -> bool:
    """Whether a run begins, over others, with one that was seen already."""
    while place not in seen:
        seen.append(place)
        start = merged(place, scaled).start
        if start is None or any(b not in scaled.axes.get(a, {}) for a, b in start.items()):
            return False
        place = {**place, **start}
    return True


def _is_left_out(place: Mapping[str, str], scaled: Scaled) -> bool:
    return any(
        all(place.get(axis) in labels for axis, labels in combination.items())
        for combination in scaled.leave_out
    )


def describe(place: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {label}" for axis, label in place.items()) or "its only run"
