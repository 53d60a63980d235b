"""RobustBench records of a run: measured numbers only, and why a number is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buttress import __version__
from buttress.attacks.autoattack import AutoAttack
from buttress.records.robustbench import board_dataset
from buttress.registry import canonical
from buttress.report.views import Result, RunView, Share
from buttress.sharing.measured import (
    Measured,
    doubts,
    is_doubtful,
    is_severe,
    shown_dataset,
)
from buttress.sharing.weights import local_model

STANDARD: Mapping[str, Any] = {
    "version": AutoAttack.version,
    "attacks": [],
    "steps": AutoAttack.steps,
    "queries": AutoAttack.queries,
}


@dataclass(frozen=True)
class Credit:
    """What only a person knows about a model."""

    name: str
    authors: str = ""
    link: str = ""

    @property
    def file(self) -> str:
        """The name as RobustBench names files: letters, digits, ``-`` and ``_``."""
        return re.sub(r"[^A-Za-z0-9-]+", "_", self.name).strip("_-") or "model"


@dataclass(frozen=True)
class BoardRecord:
    """One file, and why its robust accuracy is not in it, if it is not."""

    path: str  # inside the exported folder
    content: Mapping[str, Any]
    left_out: str = ""


@dataclass(frozen=True)
class Trial:
    """AutoAttack on a model: a threat, its result, and what keeps it from a board."""

    dataset: str
    threat: str
    result: Result | None = None  # only if nothing is wrong with it
    trouble: str = ""

    @property
    def norm(self) -> str:
        return self.threat.partition(":")[0]


def board_records(run: RunView, measured: Measured, credit: Credit) -> list[BoardRecord]:
    """One record per data set and norm that was trained or measured."""
    trained = run.trained_on
    chosen: dict[tuple[str, str], Trial] = {}
    ordered = sorted(trials(run, measured), key=lambda t: (not t.result, t.threat != trained))
    for trial in ordered:
        chosen.setdefault((board_dataset(trial.dataset), trial.norm), trial)
    return [record(run, measured, credit, trial) for trial in chosen.values()]


def trials(run: RunView, measured: Measured) -> list[Trial]:
    found = []
    for suite in measured.suites:
        for result in suite.results.values():
            if canonical(result.definition.attack) != "autoattack":
                continue
            trouble = why_not_standard(result) or measured.why_partial(suite)
            usable = None if trouble else result
            found.append(Trial(suite.dataset, result.definition.threat, usable, trouble))
    threat = run.trained_on
    if threat and threat not in [t.threat for t in found]:
        command = f"buttress evaluate RUN --suite clean,autoattack:{threat}"
        found.append(Trial(run.spec.dataset, threat, None, f"it was not run; {command} does"))
    return found


def why_not_standard(result: Result) -> str:
    """Why a record is not the standard AutoAttack; empty if it is."""
    given = result.made.get("args") or {}
    if any(STANDARD.get(name) != value for name, value in given.items()):
        return f"it was not the standard version ({result.definition.args})"
    if result.made.get("mode"):
        return "attacks before it had taken images away, so it is not AutoAttack alone"
    return ""


def record(run: RunView, measured: Measured, credit: Credit, trial: Trial) -> BoardRecord:
    content, used = common(run, measured, credit, trial.dataset)
    content["eps"] = trial.threat.partition(":")[2]
    notes = []
    if trial.result is not None:
        content["autoattack_acc"] = in_percent(trial.result.share.value)
        notes = [measurement(trial.result.share)]
        used = [*used, trial.result]
    content |= remarks(run, measured, notes, used)
    path = f"model_info/{board_dataset(trial.dataset)}/{trial.norm}/{credit.file}.json"
    what = f"AutoAttack at {trial.threat} on {shown_dataset(trial.dataset)}"
    return BoardRecord(path, content, "" if trial.result else f"{what}: {trial.trouble}")


def common(
    run: RunView, measured: Measured, credit: Credit, dataset: str
) -> tuple[dict[str, Any], list[Result]]:
    """The fields that every file has, and the results behind them."""
    clean = measured.clean(dataset)
    content = {
        "link": credit.link,
        "name": credit.name,
        "authors": credit.authors,
        "additional_data": run.spec.recipe.extra is not None or "finetuned_from" in run.header,
        "number_forward_passes": 1,
        "dataset": board_dataset(dataset),
        "venue": "",
        "architecture": local_model(run.model),
        "eps": None,
        "clean_acc": "" if clean is None else in_percent(clean.share.value),
        "reported": "",
    }
    return content, [] if clean is None else [clean]


def remarks(
    run: RunView, measured: Measured, notes: Sequence[str], used: Sequence[Result]
) -> dict[str, Any]:
    """What the other fields cannot say, and whether the numbers may be trusted."""
    found = list(notes)
    if run.spec.recipe.extra is not None:
        found.append(f"Trained with more images: {shown_dataset(run.spec.recipe.extra.dataset)}.")
    if "finetuned_from" in run.header:
        found.append(f"Fine-tuned from {run.header['finetuned_from'].get('source', 'a model')}.")
    is_unreliable = any(map(is_doubtful, used)) or any(map(is_severe, measured.diagnosis))
    if is_unreliable:
        found += [f"Doubt: {text}." for text in doubts(used, measured.diagnosis)]
    return {"footnote": " ".join(found), "unreliable": is_unreliable}


def measurement(share: Share) -> str:
    interval = f"{in_percent(share.low)} to {in_percent(share.high)}"
    return f"Measured by Buttress {__version__} on {share.images} images, 95% interval {interval}."


def in_percent(share: float) -> str:
    return f"{100 * share:.2f}"
