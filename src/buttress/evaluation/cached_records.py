"""Records of earlier evaluations: whether they answer for an attack that is about to be made."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFileError, OutdatedFileError
from buttress.results.attack_record import AttackRecord, read_attack_record
from buttress.results.run import EVAL_FOLDER, changed_keys
from buttress.system.progress import Progress

DEFAULT_IDENTITY: Mapping[str, Any] = {"draws": 1, "surrogate": ""}  # of records that do not say
SUITE_KEYS = ("suite", "suite_position")
# Metadata of the attack itself, without what checks and cross-checks added.
ATTACK_KEYS = (
    "seconds",
    "peak_memory_mb",
    "forward_passes",
    "backward_passes",
    "nonfinite_images",
    "nonfinite_outputs",
    "stages",
    "model_optimizations",
    "draw_accuracies",
)


def read_cached_record(
    path: Path, identity: Mapping[str, Any], progress: Progress
) -> AttackRecord | None:
    """Read the record at ``path`` if it is valid and matches ``identity``."""
    try:
        record = read_attack_record(path)
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        progress.log(f"{error}; running the attack again")
        return None
    if changed := _changed_settings(record, identity):
        settings = ", ".join(changed)
        progress.log(f"{path} was made with other settings ({settings}); running the attack again")
        return None
    return record


def read_equal_attack(
    path: Path | None, identity: Mapping[str, Any], progress: Progress
) -> AttackRecord | None:
    """Read the results of the same attack in another suite of the run whose record is ``path``.

    Checks and cross-checks are left out: they depend on the other attacks of a suite.
    """
    if path is None or path.parent.parent.name != EVAL_FOLDER:  # a folder that the user chose
        return None
    if "mode" in identity or not identity["threat"]:  # depends on earlier attacks, or is no attack
        return None
    for other in sorted(path.parent.parent.glob(f"*/{glob.escape(path.name)}")):
        try:
            record = read_attack_record(other)
        except (CorruptFileError, OutdatedFileError, OSError):
            continue  # it is the business of its own suite
        if not _changed_settings(record, identity, ignored=SUITE_KEYS):
            suite = record.metadata["suite"]
            progress.log(f"{record.name}: attacked already in suite {suite}; results are reused")
            attack_metadata = {k: v for k, v in record.metadata.items() if k in ATTACK_KEYS}
            return replace(record, metadata={**attack_metadata, "attacked_in_suite": suite})
    return None


def _changed_settings(
    record: AttackRecord, identity: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
    """Keys of the identity in which a record differs."""
    keys = [k for k in identity if k not in ignored]
    stored = {k: record.metadata.get(k, DEFAULT_IDENTITY.get(k)) for k in keys}
    return changed_keys(stored, {k: identity[k] for k in keys})
