"""Two models, or two groups of training seeds, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buttress.comparison.match import WORST, flags_on, rows_to_compare, shared_images
from buttress.comparison.notes import notes_on
from buttress.comparison.rows import Row, compare_row
from buttress.comparison.sides import Side, Source, load_sides
from buttress.errors import UserError
from buttress.statistics import holm


@dataclass(frozen=True)
class Comparison:
    """Whether A holds better than B, on the images both were judged on."""

    a: Side
    b: Side
    suite: str
    images: int  # that all were judged on
    rows: tuple[Row, ...]
    paired_seeds: bool  # seed k of A is compared with seed k of B
    notes: tuple[str, ...] = ()  # what a reader must know

    @property
    def has_seeds(self) -> bool:
        return len(self.a.members) > 1

    @property
    def doubted(self) -> list[str]:
        """The sides whose numbers cannot be trusted."""
        return [name for name, side in (("A", self.a), ("B", self.b)) if not side.trustworthy]

    def row(self, name: str = WORST) -> Row:
        return next(r for r in self.rows if r.name == name)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "suite": self.suite,
            "images": self.images,
            "paired_seeds": self.paired_seeds,
            "rows": {r.name: r.to_dict() for r in self.rows},
            "notes": list(self.notes),
        }


def compare(
    a: Source | Sequence[Source],
    b: Source | Sequence[Source],
    *,
    suite: str | None = None,
    attack: str | None = None,
) -> Comparison:
    """Compares two models image by image, or two groups of training seeds.

    Args:
        a: a run, its folder, a folder of records, or an `Evaluation`; a list of them for several
            seeds of one training.
        b: the other side, likewise.
        suite: which evaluation of runs that have several.
        attack: one attack, or ``worst_case``; all of them if not given.

    Only images that all were judged on count. What was not judged alike is refused.
    """
    sides = load_sides(_listed(a), _listed(b), suite)
    members = [m for side in sides for m in side.members]
    sizes = {len(side.members) for side in sides}
    if 1 in sizes and len(sizes) > 1:
        raise UserError(
            f"several seeds on one side need several on the other, but got "
            f"{len(sides[0].members)} and {len(sides[1].members)}"
        )
    names, shared = rows_to_compare(members, attack), shared_images(members)
    paired, rows = _paired(*sides), []
    for name in names:
        ours, theirs = (flags_on(side.members, name, shared) for side in sides)
        rows.append(compare_row(name, ours, theirs, paired))
    corrected = holm([r.p for r in rows])
    return Comparison(
        *sides,
        suite=str(members[0].made.get("suite") or members[0].evaluation.suite),
        images=len(shared),
        rows=tuple(replace(r, p_holm=p) for r, p in zip(rows, corrected, strict=True)),
        paired_seeds=paired,
        notes=tuple(notes_on(*sides, len(shared))),
    )


def _listed(given: Source | Sequence[Source]) -> list[Source]:
    return list(given) if isinstance(given, (list, tuple)) else [given]  # type: ignore[list-item]


def _paired(a: Side, b: Side) -> bool:
    """Whether both sides were trained with the same seeds."""
    return len(a.members) > 1 and None not in a.seeds and a.seeds == b.seeds
