"""The read model of a run: specification, state, evaluations and diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from buttress.registry import normalize_name
from buttress.results.diagnosis import Diagnosis, Finding, deduplicate_findings, read_diagnosis
from buttress.results.evaluation import Evaluation, load_evaluation, read_usable_evaluation
from buttress.results.run import Run, RunState
from buttress.results.run_spec import RunSpec
from buttress.threats.core import Threat


@dataclass(eq=False)
class RunResults:
    """All results of one run; each file is read when first used, and only once."""

    run: Run
    display_path: str = ""  # of the folder, in messages about files that cannot be used
    loaded: dict[str, Evaluation] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def header(self) -> Mapping[str, Any]:
        return self.run.header

    @cached_property
    def spec(self) -> RunSpec:
        return self.run.spec

    @cached_property
    def state(self) -> RunState:
        return self.run.state

    @cached_property
    def failure_message(self) -> str:
        failure = self.run.failure
        return "" if failure is None else failure.message

    @property
    def key(self) -> str:
        return str(self.header.get("key", ""))

    @property
    def model(self) -> str:
        """Short name of the model, as tables and charts show it."""
        return self.spec.model_name

    @property
    def category(self) -> str:
        return str(self.header.get("category", ""))

    @property
    def objective(self) -> str:
        return self.spec.recipe.objective.name

    @property
    def is_standard(self) -> bool:
        return normalize_name(self.objective) == "standard"

    @property
    def training_threat(self) -> str:
        """Threat model of training; empty for standard training."""
        return "" if self.is_standard else self.spec.recipe.threat or ""

    @property
    def training_threats(self) -> tuple[str, ...]:
        """Threat models of training: those of the objective, if it names several."""
        several = self.spec.recipe.objective.args.get("threats")
        if self.is_standard or not isinstance(several, list | tuple):
            return (self.training_threat,) if self.training_threat else ()
        return tuple(str(Threat.parse(text)) for text in several)

    @property
    def unfinished_warning(self) -> tuple[str, ...]:
        """Whether training is not finished, as a warning for tables."""
        state = f"training is not finished (state: {self.state})"
        return () if self.run.is_trained else (state,)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about training, for every accuracy of this run."""
        return (*self.unfinished_warning, *self.run.caveats)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the doctor; None if it was not run."""
        return read_diagnosis(self.run.analysis_file("doctor"))

    def evaluation(self, suite: str, checkpoint: str = "best") -> Evaluation:
        """The evaluation with a suite; raise if one of its records cannot be used."""
        name = suite if checkpoint == "best" else f"{suite}-{checkpoint}"
        if name not in self.loaded:
            evaluation = load_evaluation(self.run.suite_folder(name))
            self.loaded[name] = evaluation.with_diagnosis(self.diagnosis)
        return self.loaded[name]

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """All evaluations, with the records that can be used and why others cannot."""
        usable = (
            read_usable_evaluation(self.run.suite_folder(s), f"{self.display_path}/eval/{s}")
            for s in self.run.suites()
        )
        return tuple(e.with_diagnosis(self.diagnosis) for e in usable if e is not None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the evaluations that the doctor does not have."""
        known = {f.check for f in self.diagnosis.findings} if self.diagnosis else set()
        findings = deduplicate_findings(f for e in self.evaluations for f in e.findings)
        return tuple(f for f in findings if f.check not in known)
