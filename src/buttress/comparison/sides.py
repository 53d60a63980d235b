"""The two sides of a comparison: one evaluation each, or one per training seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.errors import RunError, UserError
from buttress.records.evaluation import Evaluation, diagnosed, load_evaluation
from buttress.records.run import Run, differences

Source = str | Path | Run | Evaluation


@dataclass(frozen=True)
class Judged:
    """One trained model and the verdicts on it."""

    name: str  # where it came from, as the user named it
    evaluation: Evaluation
    identity: dict[str, Any] | None = None  # what was trained, if the run is known

    @property
    def made(self) -> dict[str, Any]:
        """What all records of the evaluation share."""
        return dict(next(iter(self.evaluation.records.values())).meta)

    @property
    def seed(self) -> int | None:
        return None if self.identity is None else int(self.identity.get("seed", 0))


@dataclass(frozen=True)
class Side:
    """One side: models that differ in their training seed only."""

    members: tuple[Judged, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.members)

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(m.seed for m in self.members)

    @property
    def trustworthy(self) -> bool:
        return all(m.evaluation.trustworthy for m in self.members)

    @property
    def label(self) -> str:
        """``runs/a (vit_tiny, pgd_at, seed 0)``."""
        first = self.members[0].identity
        words = [] if first is None else [first["model"], _objective(first)]
        known = [str(s) for s in self.seeds if s is not None]
        if known:
            words.append(f"{'seed' if len(known) == 1 else 'seeds'} {', '.join(known)}")
        named = ", ".join(self.names)
        return f"{named} ({', '.join(words)})" if words else named

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": list(self.names),
            "seeds": list(self.seeds),
            "label": self.label,
            "trustworthy": self.trustworthy,
        }


def _objective(identity: dict[str, Any]) -> str:
    given = identity["recipe"].get("objective", {"name": "standard"})
    return str(given["name"])


def load_sides(a: Sequence[Source], b: Sequence[Source], suite: str | None) -> tuple[Side, Side]:
    """Reads what both sides name; runs with several suites need ``suite`` to say which."""
    if not a or not b:
        raise UserError("a comparison needs two sides; name a run or an evaluation for each")
    found = [(source, places(source)) for source in (*a, *b)]
    chosen = suite or _common([(name_of(s), list(p)) for s, p in found if not is_single(s)])
    members = [_judged(source, there, chosen) for source, there in found]
    sides = side_of(members[: len(a)]), side_of(members[len(a) :])
    for side in sides:
        check_seeds(side)
    return sides


def side_of(members: Sequence[Judged]) -> Side:
    """Members in the order of their seeds, where these are known, so that two sides pair up."""
    known = [m.seed for m in members if m.seed is not None]
    if len(known) < len(members):
        return Side(tuple(members))
    return Side(tuple(m for _, m in sorted(zip(known, members, strict=True), key=lambda p: p[0])))


def places(source: Source) -> dict[str, Path | Evaluation]:
    """Suite -> where its verdicts are."""
    if isinstance(source, Evaluation):
        return {source.suite: source}
    path = source.path if isinstance(source, Run) else Path(source)
    if _has_records(path):
        return {path.name: path}
    inside = path / "eval" if (path / "run.json").is_file() else path
    folders = sorted(p for p in inside.iterdir() if _has_records(p)) if inside.is_dir() else []
    if not folders:
        raise UserError(
            f"{path} holds no evaluation: name a run or a folder of records; "
            f"`buttress evaluate {path}` makes one for a run"
        )
    return {p.name: p for p in folders}


def is_single(source: Source) -> bool:
    """Whether a source is one evaluation, whatever its suite is called."""
    if isinstance(source, (Evaluation, Run)):
        return isinstance(source, Evaluation)
    return _has_records(Path(source))


def name_of(source: Source) -> str:
    if isinstance(source, Evaluation):
        return f"evaluation of {source.suite}"
    return str(source.path if isinstance(source, Run) else source)


def _has_records(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.parquet"))


def _common(runs: Sequence[tuple[str, list[str]]]) -> str | None:
    """The one suite that all runs were evaluated with."""
    if not runs:
        return None
    shared = [s for s in runs[0][1] if all(s in suites for _, suites in runs)]
    if len(shared) == 1:
        return shared[0]
    if shared:
        raise UserError(f"say which suite to compare with --suite: {', '.join(shared)}")
    said = "; ".join(f"{name} has {', '.join(suites)}" for name, suites in runs)
    raise UserError(f"no suite was run on all of them: {said}; evaluate them alike first")


def _judged(source: Source, there: dict[str, Path | Evaluation], suite: str | None) -> Judged:
    if is_single(source) or suite is None:
        place = next(iter(there.values()))
    elif suite in there:
        place = there[suite]
    else:
        raise UserError(
            f"{name_of(source)} has no evaluation {suite!r}, it has {', '.join(there)}; "
            f"`buttress evaluate {name_of(source)} --suite {suite}` makes it"
        )
    found = place if isinstance(place, Evaluation) else load_evaluation(place)
    check_whole(name_of(source), found)
    run = _run_of(source)
    if run is not None:
        found = diagnosed(found, run.analysis_file("doctor"))
    return Judged(name_of(source), found, None if run is None else run.spec.identity())


def _run_of(source: Source) -> Run | None:
    """The run that a source is or lies in."""
    if isinstance(source, (Evaluation, Run)):
        return source if isinstance(source, Run) else None
    path = Path(source)
    for run in map(Run, (path, path.parent, path.parent.parent)):
        if run.exists:
            return run
    return None


def check_whole(name: str, found: Evaluation) -> None:
    """Refuses records of several networks, and suites of which attacks are missing."""
    if not found.records:
        raise UserError(f"{name} holds no record; evaluate it first")
    if len({r.meta.get("weights") for r in found.records.values()}) > 1:
        raise RunError(f"{name} holds records of different weights; evaluate it again")
    wanted = next(iter(found.records.values())).meta.get("suite_attacks") or ()
    if missing := [w for w in wanted if w not in found.records]:
        raise UserError(
            f"{name} is not complete: {', '.join(missing)} missing; run the same `buttress "
            "evaluate` again, it does what is missing"
        )


def check_seeds(side: Side) -> None:
    """Several models on one side must be one training with different seeds."""
    first = side.members[0]
    for other in side.members[1:]:
        if first.identity is not None and other.identity is not None:
            changed = [c for c in differences(first.identity, other.identity) if c != "seed"]
            if changed:
                raise UserError(
                    f"runs on one side must differ in their seed only, but {first.name} and "
                    f"{other.name} differ in {', '.join(changed[:4])}"
                )
    known = [m.made.get("weights") for m in side.members if m.made.get("weights")]
    if len(set(known)) < len(known):
        raise UserError(
            f"the same network is on one side twice: {', '.join(side.names)}; name each seed once"
        )
