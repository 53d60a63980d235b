"""Cheap metrics of a run that may predict robust accuracy, and where each is read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from buttress.analysis.core import ANALYSES, analyze, resolve_args
from buttress.analysis.cost import PassCount
from buttress.analysis.group import RunScore
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject, load_subject
from buttress.errors import ButtressError
from buttress.models.cost import count_macs, count_parameters
from buttress.results.core import read_record_json
from buttress.system.progress import Progress

PredictorTime = Literal["initial", "trained"]


@dataclass(frozen=True)
class Predictor:
    """A metric in the result of an analysis, at ``path``."""

    name: str
    analysis: str
    path: tuple[str | int, ...]
    when: PredictorTime = "trained"
    attacks: bool = False  # needs an attack itself, so that it is close to what it predicts


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
SIZE_METRICS = ("parameters", "multiply-accumulates")
CLEAN_ACCURACY = "clean accuracy"


def number_at(result: Any, path: Sequence[str | int]) -> float | None:
    """The finite number at the end of a path; None where there is none."""
    for part in path:
        try:
            result = result[part]
        except (TypeError, KeyError, IndexError):
            return None
    is_number = isinstance(result, int | float) and not isinstance(result, bool)
    return float(result) if is_number and math.isfinite(result) else None


class MetricReader:
    """Metrics of one run; its model is loaded only if something must be computed."""

    def __init__(self, score: RunScore, compute: Sequence[str], progress: Progress) -> None:
        self.score, self.compute, self.progress = score, compute, progress
        self._subject: AnalysisSubject | None = None
        self._results: dict[tuple[str, PredictorTime], Mapping[str, Any] | None] = {}

    @property
    def subject(self) -> AnalysisSubject:
        if self._subject is None:
            self._subject = load_subject(self.score.run, progress=self.progress)
        return self._subject

    def model_sizes(self) -> dict[str, float]:
        model, spec = self.subject.model, self.score.run.spec
        macs = count_macs(model, spec.image_size)
        return dict(zip(SIZE_METRICS, (float(count_parameters(model)), float(macs)), strict=True))

    def value(self, predictor: Predictor) -> float | None:
        key = predictor.analysis, predictor.when
        if key not in self._results:
            self._results[key] = self._load_or_compute(*key)
        result = self._results[key]
        return None if result is None else number_at(result, predictor.path)

    def cost(self) -> PassCount:
        """Cost of computing all metrics that are not saved."""
        total = PassCount(0)
        for name, when in dict.fromkeys((p.analysis, p.when) for p in PREDICTORS):
            if name in self.compute and self._load_stored(name, when) is None:
                entry = ANALYSES.entry(name)
                total += entry.metadata["cost"](
                    self.subject, **resolve_args(entry, self._stored_arguments(name, when))
                )
        return total

    def _load_or_compute(self, name: str, when: PredictorTime) -> Mapping[str, Any] | None:
        """Return a saved result, or compute it if requested."""
        stored = self._load_stored(name, when)
        if stored is not None or name not in self.compute:
            return stored
        try:
            if when == "trained":
                run = self.score.run
                computed = analyze(name, run, subject=self.subject, progress=self.progress)
            else:
                fresh = replace(self.subject, model=self.subject.build_initial_model())
                computed = ANALYSES.create(
                    name, {"subject": fresh, **self._stored_arguments(name, when)}
                )
        except AnalysisNotApplicable:
            return None
        return computed.model_dump(mode="json")

    def _load_stored(self, name: str, when: PredictorTime) -> Mapping[str, Any] | None:
        """Return the result saved in the run, with any arguments; None if missing or damaged."""
        result = self._read_analysis_file(name).get("result")
        if isinstance(result, Mapping) and when == "initial":
            result = result.get("initial")
        return result if isinstance(result, Mapping) else None

    def _stored_arguments(self, name: str, when: PredictorTime) -> dict[str, Any]:
        """Arguments of the saved result, reused for the initial weights so that both compare."""
        saved = self._read_analysis_file(name).get("args")
        parameters = inspect.signature(ANALYSES.get(name)).parameters
        if when == "trained" or not isinstance(saved, Mapping):
            return {}
        return {k: v for k, v in saved.items() if k in parameters}

    def _read_analysis_file(self, name: str) -> Mapping[str, Any]:
        try:
            return read_record_json(self.score.run.analysis_file(name))
        except (FileNotFoundError, ButtressError):
            return {}
