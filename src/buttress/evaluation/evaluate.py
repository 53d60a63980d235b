"""Evaluate a model with all attacks of a suite and store per-sample results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from buttress.attacks.core import ATTACKS, create_attack
from buttress.data import Dataset
from buttress.engine.checks import check_differentiable, check_image_batch, check_model_output
from buttress.engine.randomness import NOISE_IMAGES, EotSamples, choose_eot_samples
from buttress.engine.run import attach_surrogate
from buttress.errors import UserError
from buttress.evaluation.cached_records import read_cached_record, read_equal_attack
from buttress.evaluation.cross_check import AttackChecks, cross_check
from buttress.evaluation.doctor.core import (
    PROBE_IMAGES,
    ModelUnderTest,
    add_record_findings,
    run_checks,
    with_findings,
)
from buttress.evaluation.doctor.images import EvaluatedImages
from buttress.evaluation.doctor.outputs import RANDOMNESS_CHECK
from buttress.evaluation.inputs import load_images
from buttress.evaluation.run_entry import (
    EvaluatedModel,
    EvaluationJob,
    entry_passes,
    load_source_models,
    run_suite_entry,
)
from buttress.evaluation.suite import (
    SuiteEntry,
    SuiteLike,
    SuiteTarget,
    adapt_entries,
    choose_suite,
    corruption_source,
    resolve_suite,
)
from buttress.models.cost import count_passes
from buttress.models.eval_mode import eval_mode, is_differentiable, to_model_device
from buttress.models.surrogate import Surrogate
from buttress.results.attack_record import AttackRecord, write_attack_record
from buttress.results.diagnosis import Finding, warning_texts
from buttress.results.evaluation import Evaluation
from buttress.results.run import command_line, provenance
from buttress.results.suite_spec import SuiteSpec
from buttress.system.locks import lock_folder
from buttress.system.progress import Progress, SilentProgress
from buttress.system.signatures import explain_arguments
from buttress.threats.arguments import threat_text
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NormBall

if TYPE_CHECKING:
    from buttress.data.convert import DataLike

RANDOMIZED_DRAWS = 20  # over which a randomized model is scored
REPEATED_IMAGES = 8  # that checks of the outputs pass several times


@dataclass(frozen=True)
class EvaluationOptions:
    """How an evaluation is run; seed, draws and surrogate affect the per-sample results."""

    batch_size: int = 256
    seed: int = 0
    out: Path | None = None
    progress: Progress = SilentProgress()  # noqa: RUF009 - it has no state
    draws: int | None = None  # of a randomized model; None: measured whether it is one
    surrogate: Any = None  # of all gradient-based attacks
    eot_samples: EotSamples | None = None  # of all attacks
    # Of the whole evaluation, if the images are a shard or a block of them: it decides the form of
    # the model, so that all parts are computed alike.
    total_images: int | None = None


# Arguments of other libraries, and what to do in place of them.
EVALUATE_HINTS = {
    "device": "a model is evaluated where it is; use model.to(device)",
    "labels": "pass (images, labels) in place of data",
    "y": "pass (images, labels) in place of data",
    "steps": "pass an attack object as the suite: bt.attacks.PGD(eps=8/255, steps=20)",
    "threat_model": "write threat='Linf:8/255', or eps=8/255 and norm='Linf'",
    "preprocessing": "normalization belongs into the model: bt.load_model(net, mean=..., std=...)",
}


@explain_arguments("bt.evaluate(model, data, ['clean', 'pgd-linf'])", EVALUATE_HINTS)
def evaluate(  # noqa: PLR0913 - the public call
    model: nn.Module,
    data: DataLike,
    suite: SuiteLike | None = None,
    *,
    threat: str | Threat | None = None,
    eps: str | float | None = None,
    norm: str | None = None,
    limit: int | None = None,
    batch_size: int = 256,
    seed: int = 0,
    out: str | Path | None = None,
    compile: bool = False,
    draws: int | None = None,
    surrogate: Any = None,
    eot_samples: EotSamples | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Compute robust accuracy under each attack of a suite, and in the worst case.

    Args:
        model: any model from [0, 1] images to logits.
        data: the images to attack; all of them count. A `Dataset`, the name of one, a pair
            ``(images, labels)`` of arrays, a torch ``Dataset`` or ``DataLoader``, or a Hugging
            Face dataset. A loader is read once, in the order of its dataset.
        suite: suite name, YAML file, a list like ``["clean", "pgd-linf"]``, or an attack object
            such as ``bt.attacks.PGD(eps=8/255)``, alone or in a list; if not given, the fast
            ensemble in Linf.
        threat: threat model of all attacks of the suite, such as ``L2:0.5``, or a norm alone for
            the usual eps of the dataset.
        eps: in place of ``threat``, with ``norm``.
        norm: Linf, L2, L1 ...; Linf if not given.
        limit: attack only the first images.
        batch_size: affects speed and memory, not the per-sample results.
        seed: of the attacks' random starts.
        out: folder for the records; attacks with a matching record there are skipped.
        compile: also try torch.compile; takes a minute, and needs a C++ compiler on a CPU.
        draws: of the randomness of the model, over which each image is scored; accuracies are means
            over them. Default: 20 if passes over the same images differ, else 1.
        surrogate: differentiable stand-in for preprocessing that is not, in the backward passes of
            all attacks: ``"identity"``, a function, or a mapping from submodules to these (BPDA).
        eot_samples: passes of a randomized model that all attacks average at each point (EOT);
            ``"auto"`` chooses their number from the measured noise of the margins.
        progress: where to show progress.

    Attacks run on the inference-optimized model; an adversarial example counts only if it also
    fools the original model.
    """
    images = load_images(model, data, limit)
    spec = choose_suite(suite, threat_text(threat, eps, norm), model)
    folder = None if out is None else Path(out)
    with lock_folder(folder, progress or SilentProgress()) as locked_progress:
        options = EvaluationOptions(
            batch_size, seed, folder, locked_progress, draws, surrogate, eot_samples
        )
        return evaluate_model(EvaluatedModel(model, compile), images, spec, options)


def evaluate_model(
    evaluated: EvaluatedModel, data: Dataset, spec: SuiteSpec, options: EvaluationOptions
) -> Evaluation:
    """Like `evaluate`, for a model that may be inference-optimized already."""
    entries = resolve_suite(spec, SuiteTarget(data.budgets, data.shape[1], data.name))
    if min(len(data), options.batch_size, 1 if options.draws is None else options.draws) < 1:
        raise UserError(
            "`len(data) >= 1`, `batch_size >= 1` and `draws >= 1` must hold, but got "
            f"{len(data)}, {options.batch_size} and {options.draws}"
        )
    eot_samples = _resolve_eot_samples(evaluated.model, data, options)
    entries = adapt_entries(entries, options.surrogate, eot_samples)
    subject = _check_first_images(evaluated.model, data, entries)
    images = EvaluatedImages(data, evaluated.training_images(data))
    with count_passes(evaluated.model) as model_checks:
        model_findings = [*run_checks(images, "data"), *run_checks(subject, "model")]
    draws = options.draws or default_draws(model_findings, options.progress)
    job = EvaluationJob(
        evaluated,
        data,
        spec.name,
        options.batch_size,
        options.seed,
        _model_and_data_identity(evaluated, data, spec, options)
        | {"draws": draws, "surrogate": _surrogate_text(entries)},
        draws,
        options.total_images or len(data),
        sum(entry_passes(e, data.num_classes).macs() for e in entries if e.threat is not None),
    )
    shared_metadata = {
        "class_names": list(data.classes),
        "warnings": [*getattr(evaluated.model, "warnings", ()), *warning_texts(model_findings)],
        "suite_entries": [e.name for e in entries],
        "suite_corruptions": [e.name for e in entries if e.is_corruption],
        "duplicate_ids": images.duplicate_ids(),
    }
    attack_checks = AttackChecks(subject, entries, model_checks.total)
    checked = CheckedEvaluation(job, attack_checks, model_findings)
    records: dict[str, AttackRecord] = {}
    for position, entry in enumerate(entries):
        previous = _previous_records(spec, records)
        identity = _record_identity(job, entry) | {"suite_position": position}
        if spec.mode == "worst_case" and not entry.is_corruption:
            # The attacked images depend on earlier attacks.
            identity["previous_entries"] = list(previous)
        path = None if options.out is None else options.out / f"{entry.name}.parquet"
        record = None if path is None else read_cached_record(path, identity, options.progress)
        if record is None:
            flags = [r.robust_scores > 0 for r in previous.values()]
            to_attack = np.logical_and.reduce(flags) if flags else None
            attacked = read_equal_attack(path, identity, options.progress)
            record, findings = checked.run_entry(
                entry, to_attack, list(records.values()), options.progress, attacked
            )
            meta = {**identity, **record.metadata, **shared_metadata, **provenance(command_line())}
            record = add_record_findings(
                with_findings(replace(record, metadata=meta), findings), list(records.values())
            )
            if path is not None:
                write_attack_record(path, record)
        records[entry.name] = record
    return Evaluation(spec.name, records)


@dataclass(frozen=True)
class CheckedEvaluation:
    """An evaluation whose records are checked as they are made."""

    job: EvaluationJob
    attack_checks: AttackChecks
    model_findings: Sequence[Finding]

    def run_entry(
        self,
        entry: SuiteEntry,
        to_attack: NDArray[np.bool_] | None,
        earlier: Sequence[AttackRecord],
        progress: Progress,
        attacked: AttackRecord | None = None,
    ) -> tuple[AttackRecord, list[Finding]]:
        """The record of an entry, cross-checked, and what was found on the model and the attack.

        ``attacked`` has the results of the attack itself, if it was made before.
        """
        record = attacked or run_suite_entry(self.job, entry, to_attack, progress)
        checks = self.attack_checks
        findings = [*self.model_findings, *_threat_findings(checks.subject, entry)]
        passes = checks.model_passes if to_attack is None else 0
        if entry.name in checks.entries:
            origin = {"attack": entry.attack, "threat": str(entry.threat)}
            record = replace(record, metadata={**record.metadata, **origin})
            records = [*earlier, record]
            attack_findings, passes = checks.run(entry, records)
            findings += attack_findings
            images = checks.budget(entry, records).transfer_images
            comparison = checks.comparison_for(entry, findings)
            record = cross_check(self.job, entry, record, findings, comparison, images, progress)
        metadata = {**record.metadata, "check_passes": round(passes / len(record), 3)}
        return replace(record, metadata=metadata), findings


def _previous_records(
    spec: SuiteSpec, records: Mapping[str, AttackRecord]
) -> dict[str, AttackRecord]:
    """Records whose fooled images are skipped: clean, or all that count so far."""
    counted = {n: r for n, r in records.items() if r.in_worst_case}
    return counted if spec.mode == "worst_case" else dict([*counted.items()][:1])


def _model_and_data_identity(
    evaluated: EvaluatedModel, data: Dataset, spec: SuiteSpec, options: EvaluationOptions
) -> dict[str, Any]:
    origin = {
        "weights_digest": evaluated.weights_digest,
        "data_fingerprint": data.fingerprint(),
        "dataset": data.name,
        "split": data.split,
        "seed": options.seed,
    }
    return origin if spec.mode == "table" else {**origin, "mode": spec.mode}


def _check_first_images(
    model: nn.Module, data: Dataset, entries: Sequence[SuiteEntry]
) -> ModelUnderTest:
    """Check that the model and the first images can be attacked; raise if not."""
    step = max(1, len(data) // PROBE_IMAGES)  # spread: folders are sorted by class
    probe_images = data.select(range(0, len(data), step)[:PROBE_IMAGES])
    attacks = [e for e in entries if e.threat is not None]
    attack_fns = [create_attack(e.attack, **load_source_models(e.args)) for e in attacks]
    balls = [e.threat for e in attacks if isinstance(e.threat, NormBall)]
    passes = min((attack.eot_samples for attack in attack_fns), default=1)
    surrogate = _first_surrogate(entries)
    if surrogate is not None:  # the gradients of the attacks are checked, not those of the model
        model = attach_surrogate(surrogate, model, probe_images.take(torch.arange(2)).x)
    subject = ModelUnderTest(
        model,
        probe_images,
        balls[0] if balls else NormBall("Linf", data.budgets["Linf"]),
        averaged_passes=passes,
        repeated_images=REPEATED_IMAGES,
    )
    check_image_batch(subject.x)
    with eval_mode(model):
        check_model_output(model, subject.x[:1], subject.y, data.num_classes)
    if not is_differentiable(model):
        for entry, attack in zip(attacks, attack_fns, strict=True):
            assert entry.threat is not None
            check_differentiable(attack, model, entry.threat, data.num_classes)
    return subject


def _first_surrogate(entries: Sequence[SuiteEntry]) -> Surrogate | None:
    """The surrogate whose gradients are checked: that of the first attack that has one."""
    surrogates = (e.args.get("surrogate") for e in entries)
    return next((Surrogate.parse(value) for value in surrogates if value is not None), None)


def _surrogate_text(entries: Sequence[SuiteEntry]) -> str:
    surrogate = _first_surrogate(entries)
    return "" if surrogate is None else str(surrogate)


def _resolve_eot_samples(model: nn.Module, data: Dataset, options: EvaluationOptions) -> int | None:
    if options.eot_samples != "auto":
        return options.eot_samples
    x, y, _ = data.take(torch.arange(min(NOISE_IMAGES, len(data))))
    x = to_model_device(model, x)
    count = choose_eot_samples(model, x, y.to(x.device), options.seed)
    options.progress.log(f"eot_samples: {count}, chosen from the noise of the margins")
    return count


def default_draws(findings: Sequence[Finding], progress: Progress) -> int:
    """How many draws a model is scored over: one unless it was found to be randomized."""
    if not any(finding.check == RANDOMNESS_CHECK for finding in findings):
        return 1
    progress.log(
        f"the model is randomized: each image is scored over {RANDOMIZED_DRAWS} draws, and "
        "accuracies are means over them"
    )
    return RANDOMIZED_DRAWS


def _threat_findings(subject: ModelUnderTest, entry: SuiteEntry) -> list[Finding]:
    """Findings about the threat model of an entry."""
    if not isinstance(entry.threat, NormBall):
        return []
    return run_checks(replace(subject, threat=entry.threat), "threat")


def _record_identity(job: EvaluationJob, entry: SuiteEntry) -> dict[str, Any]:
    """Metadata that must be equal for a cached record to be used."""
    threat = "" if entry.threat is None else str(entry.threat)
    definition: dict[str, Any] = {
        "attack": entry.attack,
        "args": entry.stored_args,
        "threat": threat,
    }
    if entry.threat is not None:
        definition |= ATTACKS.get(entry.attack).record_identity
    if entry.is_corruption:
        definition["in_worst_case"] = entry.in_worst_case
        definition["corruption_source"] = corruption_source(job.data, **entry.args)
    return {**job.identity, **definition, "suite": job.suite}


def attack_correct_images(
    job: EvaluationJob, entry: SuiteEntry, previous: AttackRecord | None, progress: Progress
) -> AttackRecord:
    """Attack the images that are correct in ``previous``; metadata identifies the attack."""
    to_attack = None if previous is None else previous.robust_scores > 0
    record = run_suite_entry(job, entry, to_attack, progress)
    return replace(record, metadata={**_record_identity(job, entry), **record.metadata})
