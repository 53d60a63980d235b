"""Runs with real weights and made-up verdicts, written with the real writers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from buttress.attacks.autoattack import AutoAttack
from buttress.config import ComponentSpec
from buttress.data import Dataset, load_dataset
from buttress.export.weights import load_run_model
from buttress.models import create_model
from buttress.models.loading.checkpoint import content_digest, save_checkpoint
from buttress.results.run import CheckpointName, Run
from buttress.results.run_spec import OptimizerSpec, Recipe, RunSpec
from report_runs import epoch, write_flags

THREAT = "Linf:8/255"
MODEL = {"num_classes": 10, "image_size": 32, "in_channels": 3}


def make_spec(**changes: Any) -> RunSpec:
    given = {
        "model": "vit_tiny",
        "dataset": "digits",
        "mean": (0.3, 0.31, 0.32),
        "std": (0.25, 0.26, 0.27),
        **MODEL,
        **changes,
    }
    objective = given.pop("objective", "pgd_at")
    recipe = Recipe(
        name="small",
        epochs=3,
        objective=ComponentSpec(name=objective),
        threat=None if objective == "standard" else given.pop("threat", THREAT),
        optimizer=OptimizerSpec(lr=0.1),
        **given.pop("recipe", {}),
    )
    return RunSpec(**given, recipe=recipe)


def finished_run(path: Path, spec: RunSpec | None = None, **header: Any) -> Run:
    run, spec = Run(path), spec or make_spec()
    run.open(spec, command=f"buttress train --data /home/me/secret/{spec.dataset}", **header)
    written: tuple[CheckpointName, ...] = ("best", "last")
    for seed, which in enumerate(written):
        model = create_model(
            spec.model, num_classes=spec.num_classes, image_size=spec.image_size,
            in_channels=spec.in_channels, mean=spec.mean, std=spec.std, options=spec.model_args,
            seed=seed,
        )  # fmt: skip
        save_checkpoint(run.checkpoint(which), {"model": model.state_dict()})
    run.write_history([epoch(e) for e in range(1, 4)])
    run.finish({"epochs": 3, "best_epoch": 2, "seconds": 1.0, "warnings": []})
    return run


@cache
def digits() -> Dataset:
    return load_dataset("digits")


def verdicts(run: Run, name: str, hits: int, **changes: Any) -> None:
    """A record of all test images of digits under the weights of the best epoch."""
    n = changes.pop("n", len(digits()))
    flags = np.arange(n) < hits
    weights = content_digest(load_run_model(run, "best").state_dict())
    made = {"weights_digest": weights, "data_fingerprint": digits().fingerprint(), **changes}
    write_flags(run, name, flags, **{"suite": "aa", **made})


def autoattack(run: Run, hits: int, **changes: Any) -> None:
    made = {"attack": "autoattack", "threat": THREAT, "args": {}, "suite_position": 1}
    made |= AutoAttack.record_identity
    verdicts(run, changes.pop("name", "aa-linf"), hits, **{**made, **changes})
