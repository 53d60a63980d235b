"""Learning rate, weight decay and length of the small recipes, for every architecture of a study.

    python benchmarks/recipe_sweep.py lr decay length --table docs/measured/recipe-sweep.md

Each trial is one adversarial training of a `mini` model by `mini-at` with some settings changed,
measured on training images that no trial trains on. Every architecture gets the same trials.
Finished trials are in the JSON file and are skipped; a trial that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import buttress as bt
from buttress.data import Dataset, load_dataset
from buttress.errors import RunError
from buttress.studies import load_study
from buttress.system.files import write_text
from buttress.training.recipe import load_recipe

HELD_OUT = 2000  # of the last training images
ATTACKS = {"linf": "Linf:8/255", "l2": "L2:0.5"}
RATES, DECAYS = (3e-3, 1e-3, 1e-2), (0.005, 0.5)
DECAY, WARMUP = 0.05, 0.1  # of `mini-at`; fraction of the epochs
FIRST = (  # one or two of each category, then the others in the order of the study
    "vit_mini", "pvt_v2_mini", "resnet_mini", "coatnet_cctt_mini", "wrn_mini", "mlp_mixer_mini",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One training: ``images`` training images, passed over ``epochs`` times."""

    model: str
    lr: float = 3e-3
    weight_decay: float = DECAY
    images: int = 49_000 - HELD_OUT
    epochs: int = 1

    @property
    def name(self) -> str:
        return f"{self.model}-lr{self.lr:g}-wd{self.weight_decay:g}-{self.images}x{self.epochs}"


def mini_models() -> list[str]:
    axis = load_study("table1").at_scale("mini").axes["architecture"]
    models = [str(settings.model) for settings in axis.values()]
    return [*FIRST, *(model for model in models if model not in FIRST)]


def list_trials(stage: str, models: list[str]) -> Iterator[Trial]:
    """The trials of a stage, the representatives of the categories first."""
    if stage == "lr":
        for group in (models[:3], models[3:6], models[6:]):
            yield from (Trial(model, lr) for lr in RATES for model in group)
    elif stage == "decay":
        yield from (Trial(model, weight_decay=decay) for model in models[:6] for decay in DECAYS)
    elif stage == "data":  # as many steps on fewer different images
        yield from (Trial(model, images=10_000, epochs=5) for model in models[:3])
    elif stage == "length":  # of table1, and three times that
        yield from (
            Trial(m, images=30_000, epochs=epochs) for epochs in (15, 45) for m in models[:3]
        )
    else:
        raise SystemExit(f"a stage must be lr, decay, data or length, but got {stage}")


def run_trial(trial: Trial, work: Path, held_out: Dataset) -> dict[str, object]:
    warmup = WARMUP * trial.epochs
    changes = (
        f"optimizer.lr={trial.lr}", f"optimizer.weight_decay={trial.weight_decay}",
        f"epochs={trial.epochs}", f"schedule.warmup_epochs={warmup}", f"eps_warmup_epochs={warmup}",
        f"validation.every={trial.epochs}",
    )  # fmt: skip
    folder, started = work / trial.name, time.process_time()
    recipe = load_recipe("mini-at", changes)
    try:
        run = bt.train(trial.model, "cifar10", recipe, folder, limit=trial.images)
    except RunError as error:  # it diverged, which is a result
        print(error, flush=True)
        failed = dict.fromkeys(("clean", *ATTACKS, "train_accuracy", "loss", "cpu_seconds"), 0.0)
        return {**asdict(trial), **failed}
    train_seconds, last = time.process_time() - started, run.history[-1]
    accuracies = measure_accuracies(bt.load_model(run.path, checkpoint="last"), held_out)
    shutil.rmtree(folder)
    return {
        **asdict(trial), **accuracies, "train_accuracy": last["train_accuracy"],
        "loss": last["loss"], "cpu_seconds": round(train_seconds, 1),
    }  # fmt: skip


def measure_accuracies(model: torch.nn.Module, held_out: Dataset) -> dict[str, float]:
    x, y, _ = held_out.take(range(len(held_out)))
    points = {"clean": x} | {
        name: bt.attack("pgd", model, x, y, threat=threat, steps=10)
        for name, threat in ATTACKS.items()
    }
    model.eval()
    with torch.no_grad():
        return {
            name: round(float((model(z).argmax(1) == y).float().mean()), 4)
            for name, z in points.items()
        }


def list_sound(rows: list[dict[str, object]], distance: float) -> list[str]:
    """Architectures whose robust accuracy at the rate of `mini-at` is this near to their best."""
    sound = []
    for label, settings in load_study("table1").at_scale("mini").axes["architecture"].items():
        trials = [asdict(Trial(str(settings.model), lr)) for lr in RATES]
        robust = [float(str(r["linf"])) for t in trials for r in rows if t.items() <= r.items()]
        if len(robust) == len(RATES) and max(robust) - robust[0] <= distance:
            sound.append(label)
    return sound


def to_table(rows: list[dict[str, object]]) -> str:
    columns = ("model", "lr", "weight_decay", "images", "epochs", "clean", "linf", "l2",
               "train_accuracy", "cpu_seconds")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    order = {model: i for i, model in enumerate(mini_models())}
    for row in sorted(rows, key=lambda r: (order[str(r["model"])], *map(repr, r.values()))):
        cells = [
            f"{100 * float(str(row[c])):.1f}" if c in ("clean", *ATTACKS, "train_accuracy")
            else f"{row[c]}" for c in columns
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", help="lr, decay, data or length, in this order")
    parser.add_argument("--models", help="comma-separated; default: all of table1")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/recipe-sweep.json"))
    parser.add_argument("--work", type=Path, default=Path("recipe-sweep"))
    parser.add_argument(
        "--sound", type=float, help="print architectures so near to their best rate"
    )
    parser.add_argument("--table", type=Path, help="write the table here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    models = args.models.split(",") if args.models else mini_models()
    held_out = load_dataset("cifar10", "train").select(range(49_000 - HELD_OUT, 49_000))
    for trial in (trial for stage in args.stages for trial in list_trials(stage, models)):
        if any(asdict(trial).items() <= row.items() for row in rows):
            continue
        rows.append(run_trial(trial, args.work, held_out))
        write_text(args.out, json.dumps(rows, indent=1) + "\n")
        print(json.dumps(rows[-1]), flush=True)
    if args.sound is not None:
        print(",".join(list_sound(rows, args.sound)))
    if args.table:
        write_text(args.table, to_table(rows))


if __name__ == "__main__":
    main()
