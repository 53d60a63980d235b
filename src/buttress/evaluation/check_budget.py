"""How many images checks and cross-checks attack: a stated fraction of the passes of attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buttress.evaluation.doctor.core import PROBE_IMAGES
from buttress.evaluation.smoothed_copy import COPY_IMAGES
from buttress.results.attack_record import AttackRecord

CHECK_FRACTION = 0.3  # of the passes of attacks: what checks and cross-checks may take
MIN_CHECK_IMAGES = 6  # that checks attack, however few passes an attack takes
TRANSFER_FRACTION = 0.25  # of the passes left for checks that attack: of examples of the copy
# Expected passes of single images, for models whose gradients are right:
CHECK_PASSES = 62  # ten steps, twenty in a large ball that stop early, finite differences twice
TRANSFER_PASSES = 23  # ten steps on the copy, and its examples on the model
PROBE_QUERIES = 51  # of `fast`, for each image that no gradient-based stage fools


@dataclass(frozen=True)
class CheckBudget:
    """The passes of single images that checks which attack, and transfers, may take."""

    passes: float

    @classmethod
    def of_records(cls, records: Sequence[AttackRecord], spent: int) -> CheckBudget:
        """The budget of attacks on one threat model, of which other checks spent some."""
        attack_passes = sum(_total_passes(r) - _probe_passes(r) for r in records)
        probes = sum(map(_probe_passes, records))
        return cls(CHECK_FRACTION * attack_passes - probes - spent)

    @property
    def check_images(self) -> int:
        """Images that each check attacks."""
        affordable = int((1 - TRANSFER_FRACTION) * self.passes / CHECK_PASSES)
        return min(PROBE_IMAGES, max(MIN_CHECK_IMAGES, affordable))

    @property
    def transfer_images(self) -> int:
        """Images that examples of the copy are made of, in full batches of the copy."""
        affordable = int(TRANSFER_FRACTION * self.passes / TRANSFER_PASSES)
        return max(COPY_IMAGES, affordable // COPY_IMAGES * COPY_IMAGES)


def _total_passes(record: AttackRecord) -> float:
    passes = record.metadata["forward_passes"] + record.metadata["backward_passes"]
    return len(record) * float(passes)


def _probe_passes(record: AttackRecord) -> float:
    """Queries that `fast` makes for every image not fooled yet: a cross-check of its own."""
    squares = [stage for stage in record.metadata.get("stages") or () if stage[0] == "square"]
    is_probed = record.metadata.get("attack") == "fast" and squares
    return float(PROBE_QUERIES * squares[0][1]) if is_probed else 0.0


def check_ratio(records: Sequence[AttackRecord]) -> float:
    """Passes of all checks and cross-checks of an evaluation, over those of its attacks alone."""
    attacks = sum(_total_passes(r) - _probe_passes(r) for r in records)
    return sum(map(_check_passes, records)) / attacks


def _check_passes(record: AttackRecord) -> float:
    summary = record.metadata.get("cross_check") or {}
    per_image = record.metadata["check_passes"] + sum(
        summary.get(key, 0) for key in ("forward_passes", "copy_passes")
    )
    return len(record) * float(per_image) + _probe_passes(record)
