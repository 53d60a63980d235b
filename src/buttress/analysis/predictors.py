"""Cheap figures of a run that might tell how robust it is: where each is read, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from buttress.analysis.core import ANALYSES, analyse
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
    Predictor("Gaussian bound (log)", "lipschitz", ("gaussian_log10",)),
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
    Predictor("sharpness (Hessian)", "sharpness", ("clean", "hessian", "largest")),
    Predictor("sharpness (in filters)", "sharpness", ("clean", "relative", "largest")),
    Predictor("rise of the loss nearby", "sharpness", ("clean", "rises", -1, "ascent")),
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

    def _result(self, name: str, when: When) -> Mapping[str, Any] | None:
        """A saved result, or one computed now where that was asked for."""
        saved = self._saved(name)
        if when == "trained" and saved is not None:
            return saved
        inside = None if saved is None else saved.get("initial")
        if when == "initial" and isinstance(inside, Mapping):
            return inside
        if name not in self.compute or name not in ANALYSES.names():
            return None
        try:
            if when == "trained":
                run = self.score.run
                done = analyse(name, run, subject=self.subject, progress=self.progress)
            else:
                model = self.subject.initial_model()
                fresh = replace(self.subject, model=model, run=None)
                done = ANALYSES.create(name, {"subject": fresh})
        except DoesNotApply:
            return None
        return done.model_dump(mode="json")

    def _saved(self, name: str) -> Mapping[str, Any] | None:
        """The result in the run, whatever its arguments were; None if it is not there or broken."""
        try:
            result = read_json(self.score.run.analysis_file(name)).get("result")
        except (FileNotFoundError, ButtressError):
            return None
        return result if isinstance(result, Mapping) else None
