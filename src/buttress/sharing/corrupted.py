"""RobustBench records of common corruptions: the mean over all of the published images, or nothing.

The published images are those of arXiv:1903.12261 and their likes for CIFAR.
"""

from __future__ import annotations

from collections.abc import Mapping

from buttress.errors import CorruptFile
from buttress.records.corruption import is_official
from buttress.records.evaluation import AttackRecord, read_record
from buttress.records.robustbench import CORRUPTIONS, board_dataset
from buttress.report.views import RunView, SuiteView
from buttress.sharing.leaderboard import BoardRecord, Credit, common, in_percent, remarks
from buttress.sharing.measured import Measured, about, shown_dataset

TYPES, SEVERITIES = 15, 5

Key = tuple[str, int]  # name, severity


def corruption_records(run: RunView, measured: Measured, credit: Credit) -> list[BoardRecord]:
    """One record per data set whose corrupted test images were shown to the model."""
    records: dict[str, BoardRecord] = {}
    for suite in measured.suites:
        seen = corruptions(run, suite)
        if not seen:
            continue
        trouble = why_not_published(seen) or measured.why_partial(suite)
        content, used = common(run, measured, credit, suite.dataset)
        if not trouble:
            mean = sum(r.accuracy for r in seen.values()) / len(seen)
            content["corruptions_acc"] = in_percent(mean)
        content |= remarks(run, measured, [], [*used, *suite.results.values()])
        path = f"model_info/{board_dataset(suite.dataset)}/{CORRUPTIONS}/{credit.file}.json"
        reason = f"corruptions of {shown_dataset(suite.dataset)}: {trouble}" if trouble else ""
        if path not in records or records[path].left_out:
            records[path] = BoardRecord(path, content, reason)
    return list(records.values())


def corruptions(run: RunView, suite: SuiteView) -> dict[Key, AttackRecord]:
    """The readable records of a suite that are about corruptions of the same images."""
    first, found = about(suite), {}
    for path in sorted(run.run.suite_folder(suite.suite).glob("*.parquet")):
        try:
            record = read_record(path)
        except (CorruptFile, OSError):
            continue
        args = record.meta.get("args") or {}
        same = all(record.meta.get(k) == first.get(k) for k in ("weights", "data"))
        if record.is_corruption and same:
            found[str(args.get("corruption")), int(args.get("severity", 0))] = record
    return found


def why_not_published(seen: Mapping[Key, AttackRecord]) -> str:
    """Why a mean over these is not the number that leaderboards show; empty if it is."""
    types, levels = {name for name, _ in seen}, {severity for _, severity in seen}
    whole = TYPES * SEVERITIES
    if (len(types), len(levels), len(seen)) != (TYPES, SEVERITIES, whole):
        return (
            f"the published number is the mean over {TYPES} corruptions at {SEVERITIES} "
            f"severities, and {len(seen)} of {whole} were measured"
        )
    if not all(map(is_official, seen.values())):
        return "the images were corrupted here and are not the published ones"
    return ""
