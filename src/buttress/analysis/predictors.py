"""Cheap figures of a run that might tell how robust it is: where each is read, in plain words."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from buttress.analysis.core import ANALYSES, analyse, settled
from buttress.analysis.cost import Passes
from buttress.analysis.scores import Score
from buttress.analysis.subject import DoesNotApply, Subject, subject_of
from buttress.errors import ButtressError
from buttress.files import read_json
from buttress.models.cost import count_macs, count_parameters
from buttress.progress import Progress

When = Literal["initial", "trained"]


@dataclass(frozen=True)
class Predictor:
    """A number in the result of an analysis; ``path`` leads to it."""

    name: str
    analysis: str
    path: tuple[str | int, ...]
    when: When = "trained"
    attacks: bool = False  # takes an attack itself, so that it is near to what it predicts


PREDICTORS = (
    Predictor("weights near zero", "sparsity", ("ratio",)),
    Predictor("largest weight", "sparsity", ("largest",)),
    Predictor("weights near zero, initial", "sparsity", ("ratio",), "initial"),
    Predictor("largest weight, initial", "sparsity", ("largest",), "initial"),
    Predictor("Lipschitz L1/Linf", "lipschitz", ("places", -1, "l1_linf", "attack"), attacks=True),
    Predictor("Lipschitz L2/L2", "lipschitz", ("places", -1, "l2_l2", "ascent"), attacks=True),
    Predictor("product of layer norms (log)", "lipschitz", ("layers", -1, "product_log10")),
    Predictor("Gaussian bound (log)", "lipschitz", ("places", -1, "gaussian_log10")),
    Predictor(
        "Lipschitz L1/Linf, initial",
        "lipschitz",
        ("places", -1, "l1_linf", "attack"),
        "initial",
        attacks=True,
    ),
    Predictor(
        "product of layer norms (log), initial",
        "lipschitz",
        ("layers", -1, "product_log10"),
        "initial",
    ),
    Predictor("stability", "stability", ("stable", "share"), attacks=True),
    Predictor("stability, initial", "stability", ("stable", "share"), "initial", attacks=True),
    Predictor("sharpness (Hessian)", "sharpness", ("clean", "hessian", "largest")),
    Predictor("sharpness (in filters)", "sharpness", ("clean", "relative", "largest")),
    Predictor("rise of the loss nearby", "sharpness", ("clean", "rises", -1, "ascent")),
    Predictor(
        "sharpness (in filters), initial", "sharpness", ("clean", "relative", "largest"), "initial"
    ),
    Predictor(
        "rise of the loss nearby, initial", "sharpness", ("clean", "rises", -1, "ascent"), "initial"
    ),
)
SIZES = ("parameters", "multiply-accumulates")
CLEAN = "clean accuracy"


def found_at(result: Any, path: Sequence[str | int]) -> float | None:
    """The finite number at the end of a path; None where there is none."""
    for part in path:
        try:
            result = result[part]
        except (TypeError, KeyError, IndexError):
            return None
    is_number = isinstance(result, int | float) and not isinstance(result, bool)
    return float(result) if is_number and math.isfinite(result) else None


class Reader:
    """The figures of one run; its network is loaded only if something has to be computed."""

    def __init__(self, score: Score, compute: Sequence[str], progress: Progress) -> None:
        self.score, self.compute, self.progress = score, compute, progress
        self._subject: Subject | None = None
        self._results: dict[tuple[str, When], Mapping[str, Any] | None] = {}

    @property
    def subject(self) -> Subject:
        if self._subject is None:
            self._subject = subject_of(self.score.run, progress=self.progress)
        return self._subject

    def sizes(self) -> dict[str, float]:
        model, spec = self.subject.model, self.score.run.spec
        macs = count_macs(model, spec.image_size)
        return dict(zip(SIZES, (float(count_parameters(model)), float(macs)), strict=True))

    def value(self, predictor: Predictor) -> float | None:
        key = predictor.analysis, predictor.when
        if key not in self._results:
            self._results[key] = self._result(*key)
        result = self._results[key]
        return None if result is None else found_at(result, predictor.path)

    def cost(self) -> Passes:
        """What it takes to compute all that is not saved."""
        total = Passes(0)
        for name, when in dict.fromkeys((p.analysis, p.when) for p in PREDICTORS):
            if name in self.compute and self._stored(name, when) is None:
                entry = ANALYSES.entry(name)
                total += entry.extra["cost"](self.subject, **settled(entry, self._args(name, when)))
        return total

    def _result(self, name: str, when: When) -> Mapping[str, Any] | None:
        """A saved result, or one computed now where that was asked for."""
        stored = self._stored(name, when)
        if stored is not None or name not in self.compute:
            return stored
        try:
            if when == "trained":
                run = self.score.run
                done = analyse(name, run, subject=self.subject, progress=self.progress)
            else:
                fresh = replace(self.subject, model=self.subject.initial_model())
                done = ANALYSES.create(name, {"subject": fresh, **self._args(name, when)})
        except DoesNotApply:
            return None
        return done.model_dump(mode="json")

    def _stored(self, name: str, when: When) -> Mapping[str, Any] | None:
        """The result in the run, whatever its arguments were; None if it is not there or broken."""
        found = self._file(name).get("result")
        if isinstance(found, Mapping) and when == "initial":
            found = found.get("initial")
        return found if isinstance(found, Mapping) else None

    def _args(self, name: str, when: When) -> dict[str, Any]:
        """Initial weights are looked at as the trained ones were, so that the two compare."""
        saved = self._file(name).get("args")
        known = inspect.signature(ANALYSES.get(name)).parameters
        if when == "trained" or not isinstance(saved, Mapping):
            return {}
        return {k: v for k, v in saved.items() if k in known}

    def _file(self, name: str) -> Mapping[str, Any]:
        try:
            return read_json(self.score.run.analysis_file(name))
        except (FileNotFoundError, ButtressError):
            return {}
