"""What optimizing the model costs short attacks and small evaluations.

    python benchmarks/small_jobs.py --before TREE --out docs/measured/small-jobs.md

CPU seconds of one thread, medians of repeats that alternate between the tools: PGD-20 on 64 images
as a plain loop, by `bt.attack`, and in the inference-optimized model, which is built first; then an
evaluation of 100 images with the default suite, and the fraction of it that goes into building that
model. Models have random weights and labels are their predictions. ``TREE`` is another checkout of
this repository, measured in the same way in processes of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import buttress as bt
from buttress.bench.attack_tools import REL_STEP, STEPS, TOOLS
from buttress.data import Dataset
from buttress.engine.fast_model import FastModel
from buttress.system.files import write_text
from buttress.threats.norm_ball import NormBall

MODELS = ("resnet_tiny", "resnet_18_slim", "vit_mini", "coatnet_cctt_mini")
ATTACKED_IMAGES, EVALUATED_IMAGES = 64, 100
THREAT = NormBall("Linf", 1 / 255)  # at which many images of a random model stay robust
COLUMNS = {
    "plain": "plain loop",
    "attack": "`bt.attack`",
    "fast model": "fast model",
    "ratio": "ratio",
    "evaluation": "evaluation",
    "preparation": "preparation",
}


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """PGD-20 as ten lines of PyTorch; returns the robust accuracy."""
    eps = THREAT.eps
    x_adv = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
    for _ in range(STEPS):
        x_adv.requires_grad_(True)
        loss = F.cross_entropy(model(x_adv), y, reduction="sum")
        (grad,) = torch.autograd.grad(loss, x_adv)
        x_adv = x_adv.detach() + REL_STEP * eps * grad.sign()
        x_adv = x_adv.clamp(x - eps, x + eps).clamp(0, 1)
    with torch.no_grad():
        is_correct = (model(x).argmax(1) == y) & (model(x_adv).argmax(1) == y)
    return float(is_correct.float().mean())


def cpu_seconds(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def measure_attacks(model: nn.Module, x: Tensor, y: Tensor, repeats: int) -> dict[str, float]:
    """CPU seconds of PGD-20 by each tool, and the least of ours relative to the plain loop."""
    tools: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain_pgd(model, x, y),
        "attack": lambda: TOOLS.get("buttress pgd")(model, x, y, THREAT),
        "fast model": lambda: TOOLS.get("buttress pgd, fast model")(model, x, y, THREAT),
    }
    for tool in tools.values():
        tool()  # memory is allocated, kernels are chosen
    rows = [{name: cpu_seconds(tool) for name, tool in tools.items()} for _ in range(repeats)]
    seconds = {name: statistics.median(row[name] for row in rows) for name in tools}
    ratio = statistics.median(row["fast model"] / row["plain"] for row in rows)
    return {**seconds, "ratio": ratio}


def measure_evaluation(model: nn.Module, data: Dataset, repeats: int) -> dict[str, float]:
    """CPU seconds of an evaluation, and the fraction that prepares the model."""
    preparation: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            started = time.process_time()
            result = function(*args, **options)
            preparation.append(time.process_time() - started)
            return result

        return wrapper

    select, optimize_forward = FastModel.select, FastModel.optimize_forward
    FastModel.select = timed(select)  # type: ignore[method-assign]
    FastModel.optimize_forward = timed(optimize_forward)  # type: ignore[method-assign]
    totals, fractions = [], []
    for _ in range(repeats):
        preparation.clear()
        totals.append(cpu_seconds(lambda: bt.evaluate(model, data, threat=str(THREAT))))
        fractions.append(sum(preparation) / totals[-1])
    FastModel.select, FastModel.optimize_forward = select, optimize_forward  # type: ignore[method-assign]
    return {
        "evaluation": statistics.median(totals),
        "preparation": statistics.median(fractions),
    }


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Model -> column -> number, in this process."""
    torch.set_num_threads(1)
    images = bt.load_dataset("cifar10", "test", limit=EVALUATED_IMAGES)
    x = images.take(torch.arange(EVALUATED_IMAGES)).x
    found = {}
    for name in MODELS:
        model = bt.create_model(name, num_classes=10, image_size=32, seed=0)
        model = model.eval().requires_grad_(False)
        with torch.no_grad():
            y = model(x).argmax(1)
        attacked = x[:ATTACKED_IMAGES], y[:ATTACKED_IMAGES]
        data = Dataset.from_arrays(x, y, classes=images.classes)
        evaluation = measure_evaluation(model, data, max(1, repeats // 2))
        found[name] = measure_attacks(model, *attacked, repeats) | evaluation
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def measure_tree(tree: Path, repeats: int) -> dict[str, dict[str, float]]:
    """The same for another checkout."""
    command = [sys.executable, __file__, "--json", "--repeats", str(repeats)]
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def format_table(trees: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [f"| model | code | {' | '.join(COLUMNS.values())} |"]
    rows.append(f"| --- | --- |{' ---: |' * len(COLUMNS)}")
    for model in MODELS:
        for tree, found in trees.items():
            numbers = [
                f"{found[model][c]:.1%}" if c == "preparation" else f"{found[model][c]:.2f}"
                for c in COLUMNS
            ]
            rows.append(f"| `{model}` | {tree} | {' | '.join(numbers)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the numbers of this checkout")
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(measure(args.repeats)))
        return
    here = Path(__file__).resolve().parents[1]
    trees = {"before": args.before.resolve(), "now": here} if args.before else {"now": here}
    table = format_table({k: measure_tree(tree, args.repeats) for k, tree in trees.items()})
    print(table)
    if args.out:
        write_text(args.out, table)


if __name__ == "__main__":
    main()
