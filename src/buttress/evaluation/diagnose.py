"""The doctor: run every check on one model, with small attacks of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from buttress.attacks.core import create_attack
from buttress.data import Dataset
from buttress.engine.checks import check_image_batch, check_model_output
from buttress.engine.cost import attack_passes
from buttress.errors import UserError
from buttress.evaluation.adapt import (
    margin_attack_args,
    propose_adaptation,
    run_adaptive_attacks,
)
from buttress.evaluation.detectors import attack_detector, is_detector
from buttress.evaluation.doctor.core import (
    CHECK_KINDS,
    CHECKS,
    CLASS_COUNT_CHECK,
    PROBE_IMAGES,
    AttackRecords,
    ModelUnderTest,
    checks_of_kind,
)
from buttress.evaluation.doctor.images import EvaluatedImages, find_training_images
from buttress.evaluation.evaluate import attack_correct_images, default_draws
from buttress.evaluation.inputs import load_images
from buttress.evaluation.run_entry import EvaluatedModel, EvaluationJob
from buttress.evaluation.suite import SuiteEntry
from buttress.models.cost import PassCount, count_passes
from buttress.models.eval_mode import eval_mode
from buttress.models.loading.checkpoint import content_digest
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import (
    AdaptiveResult,
    CheckResult,
    Diagnosis,
    Finding,
    deduplicate_findings,
)
from buttress.results.suite_spec import CLEAN
from buttress.system.progress import Progress, SilentProgress
from buttress.threats.arguments import DEFAULT_NORM, threat_text
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NormBall, parse_norm

if TYPE_CHECKING:
    from buttress.data.convert import DataLike

MAX_DOCTOR_IMAGES = 1000  # images: more cost time without new findings


class DoctorAttack(NamedTuple):
    """An attack of the doctor, run on the images that are robust to ``robust_to``."""

    name: str
    attack: str
    args: dict[str, int]
    robust_to: str = CLEAN


DOCTOR_ATTACKS = (
    DoctorAttack("noise", "noise", {"samples": 10}),
    DoctorAttack("fgsm", "fgsm", {}),
    DoctorAttack("pgd-20", "pgd", {"steps": 20}),
    DoctorAttack("fast", "fast", {"queries": 300}, robust_to="pgd-20"),
    DoctorAttack("square-300", "square", {"queries": 300}, robust_to="pgd-20"),
)

GRADIENT_FREE_ATTACKS = ("noise", "square")  # usable on models without gradients


@dataclass
class CheckRun:
    """The findings so far, and the result of each check."""

    findings: list[Finding] = field(default_factory=list)
    results: list[CheckResult] = field(default_factory=list)

    def run_checks(self, subject: object, kind: str) -> None:
        for name in checks_of_kind(kind):
            finding = CHECKS.get(name)(subject)
            self.findings += [] if finding is None else [finding]
            self._add_result(name, "passed" if finding is None else "flagged")
            if name == CLASS_COUNT_CHECK and finding is not None:
                return

    def skip_remaining(self, reason: str) -> None:
        done = {r.name for r in self.results}
        for name in (n for kind in CHECK_KINDS for n in checks_of_kind(kind) if n not in done):
            self._add_result(name, "skipped", reason)

    def _add_result(self, name: str, outcome: str, reason: str = "") -> None:
        description = CHECKS.entry(name).summary
        result = {"name": name, "description": description, "outcome": outcome, "reason": reason}
        self.results.append(CheckResult.parse(result, "check"))


def diagnose(  # noqa: PLR0913 - the public call
    model: nn.Module,
    data: DataLike,
    threat: str | Threat | None = None,
    *,
    eps: str | float | None = None,
    norm: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
    limit: int = MAX_DOCTOR_IMAGES,
    adapt: bool = False,
    surrogate: Any = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Check whether the robust accuracy of a model can be trusted.

    Args:
        model: any model from [0, 1] images to logits.
        data: the images, in any form that `evaluate` takes; all are looked at for copies.
        threat: threat model, e.g. ``Linf:8/255``; default: Linf with the dataset's eps.
        eps: in place of ``threat``, with ``norm``.
        norm: Linf, L2 or L1; alone, with the dataset's eps.
        batch_size: affects speed and memory.
        seed: of the small attacks.
        limit: how many images to attack, at most the first 1000; a few hundred suffice.
        adapt: also run the attack that the findings call for: averaged passes, a surrogate in the
            backward pass or queries, a loss of margins, a joint loss where one output more than
            there are classes rejects an image.
        surrogate: differentiable stand-in for it, as for `evaluate`; default: the identity.
        progress: where to show progress and the estimated cost.
    """
    progress, started = progress or SilentProgress(), time.perf_counter()
    all_images = load_images(model, data)
    if len(all_images) == 0:
        raise UserError("diagnose needs at least one image, but the dataset is empty")
    evaluated_images = EvaluatedImages(all_images, find_training_images(model, all_images))
    images = all_images.select(range(min(limit, MAX_DOCTOR_IMAGES, len(all_images))))
    ball = _choose_ball(threat_text(threat, eps, norm), images)
    subject, checks = ModelUnderTest(model, images, ball, seed), CheckRun()
    check_image_batch(subject.x)
    with eval_mode(model):
        check_model_output(model, subject.x[:1], subject.y[:0])
    checks.run_checks(evaluated_images, "data")
    checks.run_checks(subject, "model")
    records: list[AttackRecord] = []
    adaptive: AdaptiveResult | None = None
    if any(f.check == CLASS_COUNT_CHECK for f in checks.findings):
        checks.skip_remaining("model and dataset differ in the number of classes")
        if adapt and is_detector(subject):
            return _diagnose_detector(subject, checks, batch_size, started)
    else:
        job = _doctor_job(subject, batch_size, default_draws(checks.findings, progress))
        records = _check_under_attack(subject, checks, job, progress)
        proposal = propose_adaptation(subject, checks.findings, surrogate) if adapt else None
        if proposal is not None:
            adaptive = run_adaptive_attacks(proposal, subject, job, records, progress)
    return _build_diagnosis(subject, checks, records, adaptive, time.perf_counter() - started)


def _diagnose_detector(
    subject: ModelUnderTest, checks: CheckRun, batch_size: int, started: float
) -> Diagnosis:
    """The diagnosis of a model whose last output rejects an image."""
    usual = [(a.name, a.attack, a.args) for a in DOCTOR_ATTACKS if a.robust_to == CLEAN]
    with count_passes(subject.model) as counter:
        accuracy, adaptive = attack_detector(
            subject, usual, margin_attack_args(subject), batch_size
        )
    diagnosis = _build_diagnosis(subject, checks, [], adaptive, time.perf_counter() - started)
    return diagnosis.model_copy(update={"accuracy": accuracy, "passes": round(counter.total)})


def _doctor_job(subject: ModelUnderTest, batch_size: int, draws: int) -> EvaluationJob:
    """How the attacks of the doctor are run and recorded."""
    model, data = EvaluatedModel(subject.model), subject.data
    identity = {"dataset": data.name, "draws": draws}
    return EvaluationJob(model, data, "doctor", batch_size, subject.seed, identity, draws)


def _build_diagnosis(
    subject: ModelUnderTest,
    checks: CheckRun,
    records: Sequence[AttackRecord],
    adaptive: AdaptiveResult | None,
    seconds: float,
) -> Diagnosis:
    images = subject.data
    return Diagnosis(
        threat=str(subject.threat),
        dataset=images.name,
        split=images.split,
        images=len(images),
        seed=subject.seed,
        weights_digest=content_digest(subject.model.state_dict()),
        data_fingerprint=images.fingerprint(),
        checks=tuple(checks.results),
        findings=deduplicate_findings(checks.findings),
        accuracy={r.name: r.accuracy for r in records},
        adaptive=adaptive,
        passes=round(sum(_total_passes(r) for r in records)),
        seconds=round(seconds, 2),
    )


def _check_under_attack(
    subject: ModelUnderTest, checks: CheckRun, job: EvaluationJob, progress: Progress
) -> list[AttackRecord]:
    """Run the checks that need a threat model or attacks; return the records of the attacks."""
    checks.run_checks(subject, "threat")
    if not subject.is_black_box:
        checks.run_checks(subject, "attack")
    records = _run_doctor_attacks(subject, job, progress)
    checks.run_checks(AttackRecords(records), "records")
    checks.skip_remaining("the model provides no gradients")
    return records


def _choose_ball(threat: str | None, data: Dataset) -> NormBall:
    """The norm ball to attack in; a norm alone has the eps of the dataset."""
    if threat is not None and ":" in threat:
        return NormBall.parse(threat)
    norm = parse_norm(threat or DEFAULT_NORM)
    return NormBall(norm, data.budgets[norm])


def _run_doctor_attacks(
    subject: ModelUnderTest, job: EvaluationJob, progress: Progress
) -> list[AttackRecord]:
    """Run the doctor's attacks; the clean record is the first."""
    clean = attack_correct_images(job, SuiteEntry(CLEAN, CLEAN, None, {}), None, progress)
    metadata = {**clean.metadata, "class_names": list(job.data.classes)}
    records = {CLEAN: replace(clean, metadata=metadata)}
    probes: tuple[DoctorAttack, ...] = DOCTOR_ATTACKS
    if subject.is_black_box:
        probes = tuple(
            p._replace(robust_to=CLEAN) for p in DOCTOR_ATTACKS if p.attack in GRADIENT_FREE_ATTACKS
        )
    for stage in dict.fromkeys(probe.robust_to for probe in probes):
        stage_attacks, previous = [p for p in probes if p.robust_to == stage], records[stage]
        _log_cost(subject, stage_attacks, int(previous.correct.sum()), progress)
        for probe in stage_attacks:
            entry = SuiteEntry(probe.name, probe.attack, subject.threat, probe.args)
            records[probe.name] = attack_correct_images(job, entry, previous, progress)
    return list(records.values())


def _log_cost(
    subject: ModelUnderTest, probes: Sequence[DoctorAttack], images: int, progress: Progress
) -> None:
    """Log the estimated cost of attacks, from the time of a pass over the first images."""
    x, started = subject.x[:PROBE_IMAGES], time.perf_counter()
    subject.compute_logits(x)
    seconds_per_image = (time.perf_counter() - started) / len(x)
    num_classes = subject.data.num_classes
    attacks = [create_attack(p.attack, **p.args) for p in probes]
    per_image = [attack_passes(attack, subject.threat, num_classes) for attack in attacks]
    passes = sum(per_image, PassCount()) * images
    names = ", ".join(p.name for p in probes)
    count, seconds = passes.forward + passes.backward, passes.macs(seconds_per_image)
    progress.log(
        f"doctor: {names} on {images} images: at most {count:,.0f} passes, about {seconds:.0f} s "
        "(less for images that are fooled early)"
    )


def _total_passes(record: AttackRecord) -> float:
    return len(record) * float(
        record.metadata["forward_passes"] + record.metadata["backward_passes"]
    )
