"""Findings of the doctor's checks, and the diagnosis that is saved in a run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from buttress.config import Spec
from buttress.errors import CorruptFileError, OutdatedFileError, UserError
from buttress.results.core import read_record_json, write_record_json
from buttress.results.run import command_line, provenance
from buttress.statistics import Interval, wilson_interval

FindingSeverity = Literal["note", "warning", "untrustworthy"]
FINDING_SEVERITIES: tuple[FindingSeverity, ...] = ("note", "warning", "untrustworthy")
UNTRUSTWORTHY: FindingSeverity = "untrustworthy"
Evidence = dict[str, float | int | str]


class Finding(Spec):
    """One reason why an accuracy may be wrong: message, evidence and remedy."""

    check: str  # name of the check
    severity: FindingSeverity
    message: str
    evidence: Evidence = Field(default_factory=dict)
    remedy: str

    @property
    def text(self) -> str:
        return f"{self.message}; {self.remedy}"


class CheckResult(Spec):
    name: str
    description: str
    outcome: Literal["passed", "flagged", "skipped"]
    reason: str = ""  # why it was skipped


class AdaptiveAttack(Spec):
    """An attack that was chosen from findings, and robust accuracy after it and all before it."""

    name: str
    attack: str
    args: dict[str, Any] = Field(default_factory=dict)
    reasons: tuple[str, ...]  # what it does about which checks
    accuracy: float


class AdaptiveResult(Spec):
    """Robust accuracy before and after attacks that are adapted to what the checks found."""

    baseline: str  # the usual attack
    before: float  # robust accuracy under it alone
    worst_case_before: float  # under all attacks of the doctor that are not adapted
    attacks: tuple[AdaptiveAttack, ...]
    draws: int = 1  # of a randomized model: accuracies are means over them
    notes: tuple[str, ...] = ()  # what would need more knowledge of the model

    @property
    def after(self) -> float:
        return self.attacks[-1].accuracy

    def summary(self, images: int) -> str:
        """Summarize in words."""
        before, worst_case, after = (
            f"{accuracy:.1%} ({low:.1%} - {high:.1%})"
            for accuracy in (self.before, self.worst_case_before, self.after)
            for low, high in [wilson_interval(accuracy * images, images)]
        )
        names = ", then ".join(f"{a.name} ({'; '.join(a.reasons)})" for a in self.attacks)
        scored = f", means over {self.draws} draws" if self.draws > 1 else ""
        return (
            f"adaptive attack: {names}; robust accuracy {before} under {self.baseline}, "
            f"{worst_case} under all attacks above, {after} after the adaptive attack too{scored}"
        )


class Diagnosis(Spec):
    """Whether the robust accuracy of a model can be trusted, with the findings."""

    threat: str
    dataset: str
    split: str
    images: int
    seed: int
    weights_digest: str  # a hash: the diagnosis is about these weights only
    data_fingerprint: str
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    accuracy: dict[str, float] = Field(
        default_factory=dict
    )  # clean, and robust to each attack of the checks
    adaptive: AdaptiveResult | None = None  # with `adapt`, where a finding calls for it
    passes: int = 0  # of single images, forward and backward
    seconds: float = 0.0

    def __repr__(self) -> str:
        checks = f" ({', '.join(f.check for f in self.findings)})" if self.findings else ""
        images = f"{self.images:,} images of {self.dataset} {self.split}"
        return f"Diagnosis({self.trust_level}{checks}, {self.threat} on {images})"

    def _repr_html_(self) -> str:
        from buttress.results.display import diagnosis_html

        return diagnosis_html(self)

    @property
    def is_trustworthy(self) -> bool:
        return all_trustworthy(self.findings)

    @property
    def trust_level(self) -> str:
        """The highest severity of the findings, or ``trustworthy`` without any."""
        severities = [
            s for s in FINDING_SEVERITIES[1:] if any(f.severity == s for f in self.findings)
        ]
        return severities[-1] if severities else "trustworthy"

    def interval(self, name: str) -> Interval:
        """The 95% interval of an accuracy."""
        return wilson_interval(self.accuracy[name] * self.images, self.images)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        derived = {
            "trust_level": self.trust_level,
            "is_trustworthy": self.is_trustworthy,
            "intervals": {name: list(self.interval(name)) for name in self.accuracy},
        }
        content = {**derived, **self.model_dump(mode="json")}
        if self.adaptive is not None:
            content["adaptive"]["after"] = self.adaptive.after
        return content

    def save(self, path: Path) -> None:
        result = self.model_dump(mode="json")
        write_record_json(
            path, {"analysis": "doctor", "result": result, **provenance(command_line())}
        )


def read_diagnosis(path: Path) -> Diagnosis | None:
    """Read a diagnosis; None if the file is missing or unreadable."""
    try:
        return Diagnosis.parse(read_record_json(path).get("result"), str(path))
    except OutdatedFileError:
        raise
    except (FileNotFoundError, CorruptFileError, UserError):
        return None


def all_trustworthy(findings: Iterable[Finding]) -> bool:
    return all(f.severity != UNTRUSTWORTHY for f in findings)


def parse_findings(items: Iterable[Any]) -> tuple[Finding, ...]:
    """Parse the findings of a record; invalid ones are skipped."""
    findings = []
    for item in items:
        with suppress(UserError):
            findings.append(Finding.parse(item, "finding"))
    return tuple(findings)


def deduplicate_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep one finding per check, the most severe; the first of equals."""
    by_check: dict[str, Finding] = {}
    for finding in findings:
        previous = by_check.get(finding.check)
        if previous is None or FINDING_SEVERITIES.index(
            finding.severity
        ) > FINDING_SEVERITIES.index(previous.severity):
            by_check[finding.check] = finding
    return tuple(by_check.values())


def warning_texts(findings: Iterable[Finding]) -> list[str]:
    """Texts of the findings, without notes."""
    return [f.text for f in findings if f.severity != "note"]
