"""The two sides of a comparison: one evaluation each, or one per training seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import UserError
from buttress.results.core import WORST_CASE
from buttress.results.evaluation import Evaluation, load_evaluation
from buttress.results.run import EVAL_FOLDER, Run, changed_keys
from buttress.results.run_results import RunResults

EvaluationSource = str | Path | Run | Evaluation


@dataclass(frozen=True)
class EvaluatedRun:
    """One trained model and its evaluation."""

    name: str  # path as the user typed it
    evaluation: Evaluation
    spec_identity: dict[str, Any] | None = None  # what was trained, if the run is known

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What all records of the evaluation share."""
        return self.evaluation.metadata

    @property
    def seed(self) -> int | None:
        return None if self.spec_identity is None else int(self.spec_identity.get("seed", 0))


@dataclass(frozen=True)
class ComparisonSide:
    """One side: models that differ in their training seed only."""

    members: tuple[EvaluatedRun, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.members)

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(m.seed for m in self.members)

    @property
    def is_trustworthy(self) -> bool:
        return all(m.evaluation.is_trustworthy for m in self.members)

    @property
    def label(self) -> str:
        """``runs/a (vit_tiny, pgd_at, seed 0)``."""
        first = self.members[0].spec_identity
        details = [] if first is None else [first["model"], _objective_name(first)]
        seeds_text = [str(s) for s in self.seeds if s is not None]
        if seeds_text:
            details.append(f"{'seed' if len(seeds_text) == 1 else 'seeds'} {', '.join(seeds_text)}")
        names_text = ", ".join(self.names)
        return f"{names_text} ({', '.join(details)})" if details else names_text

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": list(self.names),
            "seeds": list(self.seeds),
            "label": self.label,
            "is_trustworthy": self.is_trustworthy,
        }


def _objective_name(identity: dict[str, Any]) -> str:
    objective = identity["recipe"].get("objective", {"name": "standard"})
    return str(objective["name"])


def load_sides(
    a: Sequence[EvaluationSource], b: Sequence[EvaluationSource], suite: str | None
) -> tuple[ComparisonSide, ComparisonSide]:
    """Load the evaluations of both sides; ``suite`` selects one of several."""
    if not a or not b:
        raise UserError("compare needs two sides: at least one run or evaluation each")
    located = [(source, find_evaluations(source)) for source in (*a, *b)]
    suite_name = suite or _shared_suite(
        [(source_name(s), list(p)) for s, p in located if not is_single_evaluation(s)]
    )
    members = [
        _load_evaluated_run(source, evaluations, suite_name) for source, evaluations in located
    ]
    sides = build_side(members[: len(a)]), build_side(members[len(a) :])
    for side in sides:
        check_same_training(side)
    return sides


def build_side(members: Sequence[EvaluatedRun]) -> ComparisonSide:
    """Order the members by seed, if known, so that two sides can be paired."""
    seeds = [m.seed for m in members if m.seed is not None]
    if len(seeds) < len(members):
        return ComparisonSide(tuple(members))
    return ComparisonSide(
        tuple(m for _, m in sorted(zip(seeds, members, strict=True), key=lambda p: p[0]))
    )


def find_evaluations(source: EvaluationSource) -> dict[str, Path | Evaluation]:
    """Map each suite of a source to its evaluation."""
    if isinstance(source, Evaluation):
        return {source.suite: source}
    path = source.path if isinstance(source, Run) else Path(source)
    if _has_records(path):
        return {path.name: path}
    folder = path / EVAL_FOLDER if (path / "run.json").is_file() else path
    folders = sorted(p for p in folder.iterdir() if _has_records(p)) if folder.is_dir() else []
    if not path.exists():
        raise UserError(f"{path} does not exist; pass a run, a folder of records or an Evaluation")
    if not folders:
        raise UserError(
            f"{path} has no evaluation; pass a run or a folder of records, "
            f"or run `buttress evaluate {path}`"
        )
    return {p.name: p for p in folders}


def is_single_evaluation(source: EvaluationSource) -> bool:
    """Whether a source is one evaluation, whatever its suite is called."""
    if isinstance(source, (Evaluation, Run)):
        return isinstance(source, Evaluation)
    return _has_records(Path(source))


def source_name(source: EvaluationSource) -> str:
    if isinstance(source, Evaluation):
        return f"evaluation of {source.suite}"
    return str(source.path if isinstance(source, Run) else source)


def _has_records(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.parquet"))


def _shared_suite(runs: Sequence[tuple[str, list[str]]]) -> str | None:
    """The one suite that all runs were evaluated with."""
    if not runs:
        return None
    shared = [s for s in runs[0][1] if all(s in suites for _, suites in runs)]
    if len(shared) == 1:
        return shared[0]
    if shared:
        raise UserError(f"the runs share several suites; choose with --suite: {', '.join(shared)}")
    suites_text = "; ".join(f"{name} has {', '.join(suites)}" for name, suites in runs)
    raise UserError(
        f"no suite was evaluated on all runs: {suites_text}; evaluate them with the same --suite"
    )


def _load_evaluated_run(
    source: EvaluationSource, evaluations: dict[str, Path | Evaluation], suite: str | None
) -> EvaluatedRun:
    if is_single_evaluation(source) or suite is None:
        location = next(iter(evaluations.values()))
    elif suite in evaluations:
        location = evaluations[suite]
    else:
        raise UserError(
            f"{source_name(source)} has no evaluation {suite!r}, only {', '.join(evaluations)}; "
            f"run `buttress evaluate {source_name(source)} --suite {suite}`"
        )
    evaluation = location if isinstance(location, Evaluation) else load_evaluation(location)
    evaluation.check_complete(source_name(source))
    run = _find_run(source)
    if run is not None:
        evaluation = evaluation.with_diagnosis(RunResults(run).diagnosis)
    return EvaluatedRun(
        source_name(source), evaluation, None if run is None else run.spec.identity()
    )


def _find_run(source: EvaluationSource) -> Run | None:
    """The run that a source is or lies in."""
    if isinstance(source, (Evaluation, Run)):
        return source if isinstance(source, Run) else None
    path = Path(source)
    for run in map(Run, (path, path.parent, path.parent.parent)):
        if run.exists:
            return run
    return None


def check_same_training(side: ComparisonSide) -> None:
    """Raise unless the runs of a side differ in their training seed only."""
    first = side.members[0]
    for other in side.members[1:]:
        if first.spec_identity is not None and other.spec_identity is not None:
            changed = [
                c for c in changed_keys(first.spec_identity, other.spec_identity) if c != "seed"
            ]
            if changed:
                raise UserError(
                    f"runs on one side must differ in their seed only, but {first.name} and "
                    f"{other.name} differ in {', '.join(changed[:4])}"
                )
    weights_digests = [
        m.metadata.get("weights_digest") for m in side.members if m.metadata.get("weights_digest")
    ]
    if len(set(weights_digests)) < len(weights_digests):
        raise UserError(
            f"the same model is listed twice on one side: {', '.join(side.names)}; "
            "list each seed once"
        )


ATTACK_KEYS = ("attack", "args", "threat", "mode", "previous_entries", "corruption_source")
SUITE_KEYS = ("suite", "in_worst_case", *ATTACK_KEYS)


def select_row_names(members: Sequence[EvaluatedRun], attack: str | None) -> list[str]:
    """Names of the rows; raise `UserError` if the evaluations differ."""
    first = members[0]
    names = list(first.evaluation.records)
    for other in members[1:]:
        check_same_data(first, other)
        if attack is None or attack == WORST_CASE:
            check_same_attacks(first, other)
    if attack is None:
        for other in members[1:]:
            check_same_definitions(first, other, names, SUITE_KEYS)
        return [*names, WORST_CASE]
    check_attack_name(members, attack)
    names_to_check = names if attack == WORST_CASE else [attack]
    for other in members[1:]:
        check_same_definitions(
            first, other, names_to_check, SUITE_KEYS if attack == WORST_CASE else ATTACK_KEYS
        )
    return [attack]


def check_same_attacks(a: EvaluatedRun, b: EvaluatedRun) -> None:
    names_a, names_b = set(a.evaluation.records), set(b.evaluation.records)
    if names_a == names_b:
        return
    differences_text = [
        f"only {m.name} has {', '.join(sorted(only))}"
        for m, only in ((a, names_a - names_b), (b, names_b - names_a))
        if only
    ]
    shared = ", ".join(n for n in a.evaluation.records if n in names_b)
    hint = "evaluate both with the same suite"
    if shared:
        hint = f"compare a shared one with --attack: {shared}"
    raise UserError(
        f"the evaluations have different attacks: {'; '.join(differences_text)}; {hint}"
    )


def check_attack_name(members: Sequence[EvaluatedRun], attack: str) -> None:
    for member in members:
        known = list(member.evaluation.records)
        if attack != WORST_CASE and attack not in known:
            raise UserError(
                f"{member.name} has no attack {attack!r}; it has {', '.join(known)} and "
                f"{WORST_CASE}"
            )


def check_same_definitions(
    a: EvaluatedRun, b: EvaluatedRun, names: Sequence[str], keys: Sequence[str]
) -> None:
    """Raise unless attacks of the same name have the same settings."""
    for name in names:
        definition_a, definition_b = (
            {k: m.evaluation.records[name].metadata.get(k) for k in keys} for m in (a, b)
        )
        if changed := changed_keys(definition_a, definition_b):
            key = changed[0].partition(".")[0]
            hint = ", or compare a shared attack with --attack" if key == "suite" else ""
            raise UserError(
                f"{name} was run with different {', '.join(changed)} ({a.name}: "
                f"{key} {definition_a[key]!r}, {b.name}: {key} {definition_b[key]!r}); "
                f"evaluate both with the same suite{hint}"
            )


def check_same_data(a: EvaluatedRun, b: EvaluatedRun) -> None:
    """Raise unless dataset and split are equal and, for the same images, their pixels too."""
    metadata_a, metadata_b = a.metadata, b.metadata
    if metadata_a.get("data_fingerprint") is not None and metadata_a.get(
        "data_fingerprint"
    ) == metadata_b.get("data_fingerprint"):
        return
    for key in ("dataset", "split"):
        if metadata_a.get(key) != metadata_b.get(key):
            raise UserError(
                f"different images: {a.name} was evaluated on {key} {metadata_a.get(key)!r}, "
                f"{b.name} on {metadata_b.get(key)!r}"
            )
    # An evaluation that stops early has the digest of its first images only.
    is_whole = "interval_width" not in metadata_a and "interval_width" not in metadata_b
    same_ids = np.array_equal(a.evaluation.sample_ids, b.evaluation.sample_ids)
    if (
        is_whole
        and same_ids
        and metadata_a.get("data_fingerprint") != metadata_b.get("data_fingerprint")
    ):
        raise UserError(
            f"different pixels: {a.name} and {b.name} have the same sample ids of "
            f"{metadata_a.get('dataset')}, but not the same pixel values (another image size?)"
        )


def shared_sample_ids(members: Sequence[EvaluatedRun]) -> NDArray[np.int64]:
    """Sorted sample ids that all were evaluated on, without copies; their labels must agree."""
    first = members[0].evaluation
    shared = first.sample_ids[first.is_distinct]
    for member in members:
        ids = member.evaluation.sample_ids
        if len(np.unique(ids)) < len(ids):
            raise UserError(f"{member.name}: sample ids must be unique, but one occurs twice")
        shared = np.intersect1d(shared, ids, assume_unique=True)
    if not len(shared):
        raise UserError(
            f"no image is shared by {', '.join(m.name for m in members)}; evaluate them on "
            "the same images"
        )
    labels = [
        _values_at(m, next(iter(m.evaluation.records.values())).labels, shared) for m in members
    ]
    if any((row != labels[0]).any() for row in labels[1:]):
        raise UserError("the same sample ids have different labels: not the same dataset")
    return shared


def correct_matrix(
    members: Sequence[EvaluatedRun], name: str, shared: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(members, images) correct under an attack, or under all of them."""
    rows = []
    for member in members:
        evaluation = member.evaluation
        flags = evaluation.is_robust if name == WORST_CASE else evaluation.correct[name]
        rows.append(_values_at(member, flags, shared))
    return np.stack(rows)


def _values_at(
    member: EvaluatedRun, values: NDArray[Any], shared: NDArray[np.int64]
) -> NDArray[Any]:
    ids = member.evaluation.sample_ids
    order = np.argsort(ids, kind="stable")
    return np.asarray(values)[order[np.searchsorted(ids[order], shared)]]
