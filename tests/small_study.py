"""A study of seconds, for tests of how runs are carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buttress.evaluation import load_evaluation
from buttress.models.loading.checkpoint import content_digest, load_checkpoint
from buttress.results.run import Run
from buttress.studies import RunJob, StudySpec, expand_study, make_jobs

GRID = {
    "base": {
        "model": "vit_tiny",
        "dataset": "digits",
        "train_limit": 64,
        "recipe": "quickstart-standard",
        "overrides": ["epochs=1", "validation.limit=16"],
    },
    "seeds": [0, 1, 2],
    "suites": ["quickstart"],
    "test_limit": 8,
    "analyses": ["sparsity"],
    "columns": {"clean": {"metric": "clean"}, "worst_case": {}},
}
CLAIM = {"id": "S1", "statement": "some survive", "predicate": {"name": "higher", "args": {
    "column": "clean", "where": {}, "baseline": {}}}}  # fmt: skip


def small_study(**changes: Any) -> StudySpec:
    grid = {**GRID, **changes}
    return StudySpec.parse({"name": "small", "question": "does it run?", "grid": grid}, "test")


def works(root: Path, **changes: Any) -> list[RunJob]:
    study = small_study(**changes)
    return make_jobs(expand_study(study, "smoke"), root)


def longer(epochs: int) -> dict[str, Any]:
    base = {**GRID["base"], "overrides": [f"epochs={epochs}", "validation.limit=16"]}  # type: ignore[dict-item]
    return {"base": base}


def content(work: RunJob) -> dict[str, Any]:
    """What a run says that must not depend on how it was run."""
    run = Run(work.folder)
    records = load_evaluation(run.suite_folder("quickstart")).records
    return {
        "weights": content_digest(load_checkpoint(run.checkpoint("last"))["model"]),
        "verdicts": {name: record.correct.tolist() for name, record in records.items()},
        "losses": records["clean"].loss.tolist(),  # attacks may search in another form
        "analyses": run.analyses(),
    }


def trained_epochs(work: RunJob) -> list[int]:
    """The epochs in the history: each once, however often the run was taken up."""
    return [row["epoch"] for row in Run(work.folder).history]
