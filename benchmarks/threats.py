"""Robust accuracy and cost per threat model of the suite `unseen`, and peers on equal passes.

    python benchmarks/threats.py resnet2b.pth [--out docs/measured/threats.md]

The first model is ResNet-2B as published with the alpha-beta-CROWN verifier
(``examples/resnet2b.py``), the others are adversarially trained minis that come with the package.
The peers are sigma-zero of adv-lib and AdversarialPatchPyTorch of the Adversarial Robustness
Toolbox, each given about as many passes per image as ours, and an exhaustive search over the grid
of `spatial`. They attack all models at the usual budgets, and at smaller ones that leave more of
the images robust.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.attacks.losses import margin
from buttress.bench.attack_tools import import_adv_lib
from buttress.engine import AttackOptions, run_attack
from buttress.evaluation import evaluate
from buttress.results.evaluation import Evaluation
from buttress.threats import Threat
from buttress.threats.patch import Patch
from buttress.threats.spatial import Spatial

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet2b.py"
PEER_PACKAGES = ("adv_lib", "art.attacks.evasion")
MINIS = ("zoo:pvt_v2_mini", "zoo:mlp_mixer_mini")
L0_STEPS = 300  # of every attack in L0
PLACES, PATCH_STEPS = 8, 40  # places of ART's patches, and steps in each
PATCH_QUERIES = 300
EXTRA_STEPS = 3  # of the peers, for the clean prediction and the last point that ours count
PEER_BUDGETS = (
    ("L0:24,values", "patch:5", "spatial:30,3"),
    ("L0:4,values", "patch:3", "spatial:10,1"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument(
        "--model", action="append", help=f"beside it; repeatable (default: {', '.join(MINIS)})"
    )
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--peer-images", type=int, default=48)
    parser.add_argument("--peers-only", action="store_true", help="leave the suite out")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    for package in PEER_PACKAGES:  # a missing one is noticed before hours of attacks
        importlib.import_module(package)
    published = bt.load_model(str(args.weights), model=f"{EXAMPLE}:OnImages").eval()
    models: dict[str, nn.Module] = {"ResNet-2B": published}
    for name in args.model or MINIS:
        models[name] = bt.load_model(name).eval()
    lines: list[str] = []
    for line in table_lines(models, args):
        lines.append(line)
        print(line, flush=True)
        if args.out is not None:
            args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table_lines(models: dict[str, nn.Module], args: argparse.Namespace) -> Iterator[str]:
    """Both tables, each row as soon as it is measured."""
    if not args.peers_only:
        data = bt.load_dataset("cifar10", "test", limit=args.images)
        yield from threat_table({n: evaluate(m, data, "unseen") for n, m in models.items()})
        yield ""
    yield "| model | threat model | attack | robust | forward passes, at most |"
    yield "| --- | --- | --- | --- | --- |"
    for name, model in models.items():
        x, y = correct_images(model, args.peer_images)
        for budgets in PEER_BUDGETS:
            for threat, attack, fooled, passes in peer_rows(model, x, y, budgets):
                robust = f"{int((~fooled).sum())}/{len(fooled)}"
                yield f"| {name} | `{threat}` | {attack} | {robust} | {passes} |"


def threat_table(evaluations: dict[str, Evaluation]) -> list[str]:
    """Robust accuracy of each model, and passes per image."""
    first = next(iter(evaluations.values()))
    names = [f"{name}: robust | forward | backward" for name in evaluations]
    lines = [
        f"| threat model | {' | '.join(names)} |",
        "| --- |" + " --- | --- | --- |" * len(names),
    ]
    for threat in first.threats:
        cells = [
            f"{100 * s.estimate.accuracy:.0f}% | {s.forward_passes:.0f} | {s.backward_passes:.0f}"
            for s in (e.threats[threat] for e in evaluations.values())
        ]
        lines.append(f"| `{threat}` | {' | '.join(cells)} |")
    for title, rates in (
        ("all of them", [e.worst_case for e in evaluations.values()]),
        ("none: clean", [e.accuracy["clean"] for e in evaluations.values()]),
    ):
        lines.append(f"| {title} | " + " | ".join(f"{100 * r:.0f}% | | " for r in rates) + "|")
    return lines


def correct_images(model: nn.Module, limit: int) -> tuple[Tensor, Tensor]:
    """The first images that the model classifies correctly."""
    x, y, _ = bt.load_dataset("cifar10", "test", limit=4 * limit).take(torch.arange(4 * limit))
    with torch.no_grad():
        rows = (model(x).argmax(1) == y).nonzero()[:limit, 0]
    return x[rows], y[rows]


Row = tuple[Threat, str, Tensor, int]  # threat model, attack, (N,) fooled, passes


def peer_rows(model: nn.Module, x: Tensor, y: Tensor, budgets: tuple[str, ...]) -> Iterator[Row]:
    """Images that our attacks fool and those of others."""
    sparse, patch, spatial = map(Threat.parse, budgets)
    assert isinstance(patch, Patch)
    assert isinstance(spatial, Spatial)
    l0_passes, patch_passes = L0_STEPS + EXTRA_STEPS, PLACES * (PATCH_STEPS + EXTRA_STEPS)
    yield ours(model, x, y, sparse, "sigma_zero", steps=L0_STEPS)
    yield ours(model, x, y, sparse, "sparse_pgd")
    yield ours(model, x, y, sparse, "apgd-t", steps=L0_STEPS // 3, targets=3, loss="margin")
    yield sparse, "sigma_zero of adv-lib", adv_lib_sparse(model, x, y, sparse), l0_passes
    yield ours(model, x, y, patch, "patch_pgd")
    yield ours(model, x, y, patch, "random_search", queries=PATCH_QUERIES)
    for optimizer in ("Adam", "pgd"):
        fooled = art_patch(model, x, y, patch, optimizer)
        yield patch, f"ART, {optimizer}", fooled, patch_passes
    yield ours(model, x, y, spatial, "grid", refine=0)
    yield ours(model, x, y, spatial, "grid")
    yield spatial, "exhaustive search", exhaustive(model, x, y, spatial), 31 * 25


def ours(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, name: str, **args: Any) -> Row:
    options = AttackOptions(stop_when_fooled=True)
    result = run_attack(create_attack(name, **args), model, x, y, threat, options=options)
    given = ", ".join(f"{k}={v}" for k, v in args.items())
    return threat, f"`{name}` {given}".strip(), result.fooled, int(result.counter.forward.max())


def adv_lib_sparse(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Images that adv-lib fools with as few values as the threat model allows."""
    x_adv = import_adv_lib().sigma_zero(model, x, y, num_steps=L0_STEPS + EXTRA_STEPS)
    return is_fooled(model, x, x_adv, y, threat)


def is_fooled(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, threat: Threat) -> Tensor:
    with torch.no_grad():
        return (model(x_adv).argmax(1) != y) & (threat.excess(x, x_adv) == 0)


def art_patch(model: nn.Module, x: Tensor, y: Tensor, threat: Patch, optimizer: str) -> Tensor:
    """Images that ART fools at one of as many random places, one patch per image and place."""
    from art.attacks.evasion import AdversarialPatchPyTorch
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0.0, 1.0)
    )
    places, fooled = np.random.default_rng(0), torch.zeros(len(x), dtype=torch.bool)
    for i in range(len(x)):
        for _ in range(PLACES):
            row, column = places.integers(0, x.shape[2] - threat.side + 1, 2).tolist()
            attack = AdversarialPatchPyTorch(
                classifier, rotation_max=0, patch_shape=(3, threat.side, threat.side),
                patch_location=(column, row), patch_type="square", optimizer=optimizer,
                learning_rate=0.1, max_iter=PATCH_STEPS + EXTRA_STEPS, targeted=False,
                verbose=False,
            )  # fmt: skip
            patch, _ = attack.generate(x[i : i + 1].numpy(), y[i : i + 1].numpy())
            x_adv = x[i : i + 1].clone()
            x_adv[0, :, row : row + threat.side, column : column + threat.side] = torch.from_numpy(
                patch
            ).to(x)
            if is_fooled(model, x[i : i + 1], x_adv, y[i : i + 1], threat)[0]:
                fooled[i] = True
                break
    return fooled


def exhaustive(model: nn.Module, x: Tensor, y: Tensor, threat: Spatial) -> Tensor:
    """Images that some point of the grid fools, one transformation after the other."""
    fooled = torch.zeros(len(x), dtype=torch.bool)
    with torch.no_grad():
        for point in threat.grid(31, 5).to(x):
            moved = threat.apply(x, point.expand(len(x), 3, 1, 1))
            fooled |= margin(model(moved), y) > 0
    return fooled


if __name__ == "__main__":
    main()
