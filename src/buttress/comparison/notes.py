"""What a reader of a comparison must know beside its numbers."""

from __future__ import annotations

from buttress.comparison.sides import Judged, Side
from buttress.records.run import differences


def notes_on(a: Side, b: Side, shared: int) -> list[str]:
    """What a reader must know of a comparison."""
    members = [*a.members, *b.members]
    sizes = [(m.name, len(m.evaluation)) for m in members]
    found = []
    if any(size > shared for _, size in sizes):
        said = ", ".join(f"{name} {size}" for name, size in sizes)
        found.append(f"only the {shared} images that all were judged on count ({said})")
    ours, theirs = ({m.made.get("weights") for m in s.members} - {None} for s in (a, b))
    if ours & theirs:
        found.append("the same network is on both sides")
    elif len(members) == 2:
        found.append(
            "one network on each side: with another training seed the answer may be another; "
            "name several seeds on each side to compare the trainings themselves"
        )
    if len({m.made.get("seed") for m in members}) > 1:
        found.append("the attacks drew their random starts from different seeds")
    return [*found, *_trained_differently(a.members[0], b.members[0]), *_warnings(a, b)]


def _trained_differently(a: Judged, b: Judged) -> list[str]:
    if a.identity is None or b.identity is None:
        return []
    changed = [c for c in differences(a.identity, b.identity) if c != "seed"]
    return [f"the trainings differ in {', '.join(changed)}"] if changed else []


def _warnings(a: Side, b: Side) -> list[str]:
    said = [
        (warning, letter)
        for letter, side in (("A", a), ("B", b))
        for member in side.members
        for warning in member.evaluation.warnings
    ]
    return [f"{letter}: {warning}" for warning, letter in dict.fromkeys(said)]
