"""The doctor: every check on one model, with small attacks of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import nn

from buttress.attacks.call import check_images, check_logits, create_attack
from buttress.attacks.freeze import frozen
from buttress.attacks.loop import attack_cost
from buttress.attacks.problem import Problem
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.evaluation.doctor.core import CHECKS, LOOK, Chart, Patient
from buttress.evaluation.doctor.examine import FIRST, KINDS, checks_of
from buttress.evaluation.evaluate import attack_left
from buttress.evaluation.suite import CLEAN, Entry
from buttress.evaluation.verdicts import Job, Network
from buttress.models.checkpoint import tree_digest
from buttress.progress import Progress, Silent
from buttress.records.diagnosis import CheckResult, Diagnosis, Finding, merged
from buttress.records.evaluation import AttackRecord
from buttress.streams import Streams
from buttress.threat import Threat

ENOUGH = 1000  # images: more would cost more and show nothing new


class Probe(NamedTuple):
    """An attack of the doctor, and the record whose survivors it is for."""

    name: str
    attack: str
    args: dict[str, int]
    after: str = CLEAN


PROBES = (
    Probe("noise", "noise", {"points": 10}),
    Probe("fgsm", "fgsm", {}),
    Probe("pgd-20", "pgd", {"steps": 20}),
    Probe("fast", "fast", {"queries": 300}, after="pgd-20"),
    Probe("square-300", "square", {"queries": 300}, after="pgd-20"),
)


BLIND = ("noise", "square")  # of these, those that a model without gradients allows


@dataclass
class Findings:
    """What has been found so far, and how each check ended."""

    found: list[Finding] = field(default_factory=list)
    results: list[CheckResult] = field(default_factory=list)

    def run(self, subject: Patient | Chart, kind: str) -> None:
        for name in checks_of(kind):
            seen = CHECKS.get(name)(subject)
            self.found += [] if seen is None else [seen]
            self._ended(name, "passed" if seen is None else "found")
            if name == FIRST and seen is not None:
                return

    def skip_the_rest(self, reason: str) -> None:
        done = {r.name for r in self.results}
        for name in (n for kind in KINDS for n in checks_of(kind) if n not in done):
            self._ended(name, "skipped", reason)

    def _ended(self, name: str, state: str, reason: str = "") -> None:
        about = CHECKS.entry(name).about
        result = {"name": name, "about": about, "state": state, "reason": reason}
        self.results.append(CheckResult.parse(result, "check"))


def diagnose(
    model: nn.Module,
    data: Dataset,
    threat: str | Threat | None = None,
    *,
    batch_size: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Can a robustness number of this model be trusted? Every check, with its evidence.

    Args:
        model: any network from [0, 1] images to logits.
        data: images to look at; a few hundred are enough, and at most the first 1000 are used.
        threat: like ``Linf:8/255``; the usual Linf ball of the data if not given.
        batch_size: changes speed and memory.
        seed: of the small attacks.
        progress: where to show progress and what it will cost.
    """
    if len(data) == 0:
        raise UserError("need images to look at, got 0")
    progress, started = progress or Silent(), time.perf_counter()
    data = data.select(range(min(ENOUGH, len(data))))
    ball = Threat.parse(threat) if threat is not None else Threat("Linf", data.budgets["Linf"])
    patient, all_of_it = Patient(model, data, ball, seed), Findings()
    check_images(patient.x)
    with frozen(model):
        check_logits(model, patient.x[:1], patient.y[:0])
    all_of_it.run(patient, "look")
    records: list[AttackRecord] = []
    if any(f.name == FIRST for f in all_of_it.found):
        all_of_it.skip_the_rest("the model does not have the classes of the data")
    else:
        all_of_it.run(patient, "ball")
        if not patient.is_black_box:
            all_of_it.run(patient, "attack")
        job = Job(Network(model), data, "doctor", batch_size, seed, {"dataset": data.name})
        records = _probed(patient, job, progress)
        all_of_it.run(Chart(records), "records")
        all_of_it.skip_the_rest("the model gives no gradients")
    return Diagnosis(
        threat=str(ball),
        dataset=data.name,
        split=data.split,
        images=len(data),
        seed=seed,
        weights=tree_digest(model.state_dict()),
        data=data.fingerprint(),
        checks=tuple(all_of_it.results),
        findings=merged(all_of_it.found),
        accuracy={r.name: r.accuracy for r in records},
        passes=round(sum(_passes(r) for r in records)),
        seconds=round(time.perf_counter() - started, 2),
    )


def _probed(patient: Patient, job: Job, progress: Progress) -> list[AttackRecord]:
    """The records of the probing attacks, clean first."""
    clean = attack_left(job, Entry(CLEAN, CLEAN, None, {}), None, progress)
    named = {**clean.meta, "classes": list(job.data.classes)}
    records = {CLEAN: replace(clean, meta=named)}
    probes: tuple[Probe, ...] = PROBES
    if patient.is_black_box:
        probes = tuple(p._replace(after=CLEAN) for p in PROBES if p.attack in BLIND)
    for after in dict.fromkeys(probe.after for probe in probes):
        here, left = [p for p in probes if p.after == after], records[after]
        _say_cost(patient, here, int(left.correct.sum()), progress)
        for probe in here:
            entry = Entry(probe.name, probe.attack, patient.threat, probe.args)
            records[probe.name] = attack_left(job, entry, left, progress)
    return list(records.values())


def _say_cost(patient: Patient, probes: Sequence[Probe], images: int, progress: Progress) -> None:
    """What the next attacks will cost, from the time of a pass over the first images."""
    x, started = patient.x[:LOOK], time.perf_counter()
    logits = patient.answer(x)
    each = (time.perf_counter() - started) / len(x)
    streams = Streams(patient.seed, "doctor", patient.data.ids[:1])
    problem = Problem(patient.model, x[:1], patient.y[:1], patient.threat, streams, logits[:1])
    costs = [attack_cost(create_attack(p.attack, **p.args), problem) for p in probes]
    passes = sum(costs) * images
    names = ", ".join(p.name for p in probes)
    progress.log(
        f"doctor: {names} on {images} images: at most {passes:,.0f} passes, about "
        f"{passes * each:.0f} s; images that break early cost less"
    )


def _passes(record: AttackRecord) -> float:
    return len(record) * float(record.meta["forward"] + 2 * record.meta["backward"])
