"""Every objective on the bundled digits, under an attack that none of them trains with.

    python benchmarks/objectives.py [--limit N] [--out docs/measured/objectives.md]

Each trains the same small network for the same number of epochs against Linf 0.06 (``free`` counts
its repeats) and is then attacked by APGD-T in Linf and by APGD-CE in L2 and L1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import buttress as bt
from buttress.data import load_dataset
from buttress.results.run_spec import Recipe
from buttress.training import OBJECTIVES
from buttress.training.objectives.core import example_args

EPOCHS, IMAGES = 12, 300
SUITE = ["clean", "apgd-t:Linf:0.06", "apgd-ce:L2:0.5", "apgd-ce:L1:5"]


def recipe(objective: str, extra: str) -> Recipe:
    args = example_args(objective)
    raw = {
        "epochs": EPOCHS // OBJECTIVES.create(objective, args).repeats,
        "batch_size": 32,
        "objective": {"name": objective, "args": args},
        "threat": "Linf:0.06",
        "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup_epochs": 1},
        "augmentation": {"crop_padding": 2},
        "validation": {"every": EPOCHS},
    }
    if OBJECTIVES.get(objective).needs_extra_data:
        raw["extra_data"] = {"dataset": f"npz:{extra}", "batch_fraction": 0.5}
    return Recipe.parse(raw, f"recipe of {objective}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet_tiny")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = load_dataset("digits", "test", limit=IMAGES)
    rows = ["| objective | clean | APGD-T Linf 0.06 | APGD-CE L2 0.5 | APGD-CE L1 5 |"]
    rows.append("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        extra = write_extra_data(Path(folder))
        for name in sorted(OBJECTIVES.names(), key=lambda n: n != "standard"):
            out = f"{folder}/{name}"
            run = bt.train(args.model, "digits", recipe(name, extra), out, limit=args.limit)
            evaluation = bt.evaluate(bt.load_model(run.path), data, SUITE)
            cells = " | ".join(f"{100 * a:.1f}%" for a in evaluation.accuracy.values())
            rows.append(f"| `{name}` | {cells} |")
            print(rows[-1], flush=True)
    if args.out is not None:
        args.out.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_extra_data(place: Path) -> str:
    """Training images with a little noise: they stand for pseudo-labeled ones."""
    data = load_dataset("digits", "train")
    noise = np.random.default_rng(0).normal(0, 0.03, data.images.shape)
    images = (data.images.numpy() + noise).clip(0, 1).transpose(0, 2, 3, 1)
    path = place / "extra.npz"
    np.savez(path, image=(255 * images).round().astype(np.uint8), label=data.labels.numpy())
    return str(path)


if __name__ == "__main__":
    main()
