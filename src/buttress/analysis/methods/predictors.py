"""Cheap metrics of a run that may predict robust accuracy, and where each is read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from buttress.analysis.core import ANALYSES, Predictor, analyze, resolve_args
from buttress.analysis.group import RunScore
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject, load_subject
from buttress.errors import ButtressError
from buttress.models.cost import PassCount
from buttress.results.core import read_record_json
from buttress.system.progress import Progress
from buttress.training.cost import run_model_cost

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
        self._results: dict[tuple[str, bool], Mapping[str, Any] | None] = {}

    @property
    def subject(self) -> AnalysisSubject:
        if self._subject is None:
            self._subject = load_subject(self.score.run, progress=self.progress)
        return self._subject

    def model_sizes(self) -> dict[str, float]:
        cost = run_model_cost(self.score.run.spec)
        return dict(zip(SIZE_METRICS, (float(cost.parameters), float(cost.macs)), strict=True))

    def value(self, predictor: Predictor) -> float | None:
        key = predictor.analysis, predictor.is_initial
        if key not in self._results:
            self._results[key] = self._load_or_compute(*key)
        result = self._results[key]
        return None if result is None else number_at(result, predictor.key_path)

    def cost(self) -> PassCount:
        """Cost of computing all metrics that are not saved."""
        total = PassCount()
        pairs = dict.fromkeys((p.analysis, p.is_initial) for p in ANALYSES.predictors())
        for name, is_initial in pairs:
            if name in self.compute and self._load_stored(name, is_initial) is None:
                args = self._stored_arguments(name, is_initial)
                resolved = resolve_args(ANALYSES.entry(name), args)
                total += ANALYSES.spec(name).cost(self.subject.scope, **resolved)
        return total

    def _load_or_compute(self, name: str, is_initial: bool) -> Mapping[str, Any] | None:
        """Return a saved result, or compute it if requested."""
        stored = self._load_stored(name, is_initial)
        if stored is not None or name not in self.compute:
            return stored
        try:
            if not is_initial:
                run = self.score.run
                computed = analyze(name, run, subject=self.subject, progress=self.progress)
            else:
                fresh = replace(self.subject, model=self.subject.build_initial_model())
                computed = ANALYSES.create(
                    name, {"subject": fresh, **self._stored_arguments(name, is_initial)}
                )
        except AnalysisNotApplicable:
            return None
        return computed.model_dump(mode="json")

    def _load_stored(self, name: str, is_initial: bool) -> Mapping[str, Any] | None:
        """Return the result saved in the run, with any arguments; None if missing or damaged."""
        result = self._read_analysis_file(name).get("result")
        if isinstance(result, Mapping) and is_initial:
            result = result.get("initial")
        return result if isinstance(result, Mapping) else None

    def _stored_arguments(self, name: str, is_initial: bool) -> dict[str, Any]:
        """Arguments of the saved result, reused for the initial weights so that both compare."""
        saved = self._read_analysis_file(name).get("args")
        parameters = inspect.signature(ANALYSES.get(name)).parameters
        if not is_initial or not isinstance(saved, Mapping):
            return {}
        return {k: v for k, v in saved.items() if k in parameters}

    def _read_analysis_file(self, name: str) -> Mapping[str, Any]:
        try:
            return read_record_json(self.score.run.analysis_file(name))
        except (FileNotFoundError, ButtressError):
            return {}
