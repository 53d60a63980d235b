"""Write the adversarially trained models of a study to the zoo, and measure each as it is stored.

    buttress study run table1 --scale mini --only training=adversarial
    python benchmarks/zoo.py results/runs

Weights are rounded to half precision first. The card then says what the rounded weights reach on
the first test images of CIFAR-10 under the suite `fast`. Models that are in the zoo with the same
weights are skipped; of several runs of a model the first seed is taken.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import buttress as bt
from buttress.models.loading.folder import DESCRIPTION_FILE
from buttress.models.loading.zoo import PREFIX, ZOO
from buttress.models.saving import round_to_half, write_description, write_weights
from buttress.results.evaluation import Evaluation
from buttress.results.run import Run
from buttress.system.files import atomic_write_folder, write_text

SUITE, IMAGES = "fast", 1000
SAMPLE = 200  # the first of them are the test images of cifar10_sample
CARD = """# {name}

`{model}` trained by the recipe `{recipe}` on {train_images} images of {dataset}, seed {seed}.
Weights of two or more dimensions are in half precision. Measured as stored, on the first
{images} test images, by `{command}`:

| | accuracy | 95% interval |
| --- | ---: | --- |
{rows}
```python
import buttress as bt

model = bt.load_model("{name}")
```
"""


def adversarial_runs(folder: Path) -> list[Run]:
    """The adversarially trained runs whose weights are there, one per architecture."""
    runs: dict[str, Run] = {}
    finished = [Run(path.parent) for path in sorted(folder.glob("*/done.json"))]
    for run in sorted(finished, key=lambda run: run.spec.seed):
        if run.spec.recipe.name == "mini-at" and run.checkpoint("best").is_file():
            runs.setdefault(run.spec.model_name, run)
    return list(runs.values())


def write_card(folder: Path, name: str, run: Run, result: Evaluation) -> None:
    """Add what was measured to the description, and write the card."""
    spec, entries = run.spec, [*result.accuracy, "worst_case"]
    description = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    training = {
        "dataset": spec.dataset, "recipe": spec.recipe.name, "images": spec.limit,
        "seed": spec.seed, "run": spec.key(),
    }  # fmt: skip
    estimates = {entry: result.estimate(entry) for entry in entries}
    accuracy = {entry: estimate.accuracy for entry, estimate in estimates.items()}
    sample = {
        entry: float(scores[:SAMPLE].mean()) for entry, scores in entry_scores(result).items()
    }
    description |= {
        "training": training, "images": len(result), "accuracy": accuracy, "sample": sample,
    }  # fmt: skip
    write_text(folder / DESCRIPTION_FILE, json.dumps(description, indent=1) + "\n")
    rows = "".join(
        f"| {entry} | {100 * estimate.accuracy:.1f}% | "
        f"{100 * estimate.interval.low:.1f} to {100 * estimate.interval.high:.1f}% |\n"
        for entry, estimate in estimates.items()
    )
    command = f"buttress evaluate {name} --data cifar10 --suite {SUITE} --limit {IMAGES}"
    text = CARD.format(
        name=name, model=spec.model_name, recipe=spec.recipe.name, seed=spec.seed, rows=rows,
        train_images=f"{spec.limit:,}", dataset=spec.dataset, images=f"{len(result):,}",
        command=command,
    )  # fmt: skip
    write_text(folder / "README.md", text)


def entry_scores(result: Evaluation) -> dict[str, NDArray[np.float64]]:
    """Per-sample scores of each entry and of the worst case."""
    scores = {entry: record.scores for entry, record in result.records.items()}
    return {**scores, "worst_case": result.robust_scores}


def add_model(run: Run, data: bt.Dataset) -> None:
    name = run.spec.model_name
    model = bt.load_model(run.path)
    round_to_half(model)
    target = ZOO / name
    with atomic_write_folder(target) as folder:
        sha256 = write_weights(folder, model, half=True)
        if target.exists():
            old = json.loads((target / DESCRIPTION_FILE).read_text(encoding="utf-8"))
            if old["weights_sha256"] == sha256 and "sample" in old:
                raise SkipModelError
        write_description(folder, model, model.options, sha256, name=name, classes=data.classes)
        result = bt.evaluate(bt.load_model(folder), data, suite=SUITE)
        write_card(folder, f"{PREFIX}{name}", run, result)
    print(f"{PREFIX}{name}: {result.accuracy}", flush=True)


class SkipModelError(Exception):
    """The zoo has these weights already."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = bt.load_dataset("cifar10", "test", limit=IMAGES)
    for run in adversarial_runs(args.runs):
        try:
            add_model(run, data)
        except SkipModelError:
            print(f"{PREFIX}{run.spec.model_name}: unchanged", flush=True)


if __name__ == "__main__":
    main()
