"""Defences that only look robust, with and without attacks that are adapted to them.

    python benchmarks/adaptive.py [--images N] [--out docs/measured/adaptive.md]

Small networks on the bundled digits, trained here (about a minute), Linf eps 0.1:

1. quantized input, attacked without and with a surrogate in the backward pass (BPDA);
2. random noise on the input, scored by one draw and over 20, attacked without and with EOT;
3. a detector, trained to reject adversarial examples of the classes, attacked by a joint loss;
4. the smallest eps that fools an adversarially trained network, by our attacks and, where adv-lib
   is installed, by its FMN and DDN, with the passes of each.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import buttress as bt
from buttress.attacks import create_attack
from buttress.bench.attack_tools import import_adv_lib
from buttress.data import Dataset, load_dataset
from buttress.engine import run_attack
from buttress.evaluation import MinimumNorms
from buttress.evaluation.detectors import ClassOutputs
from buttress.models.cost import count_passes
from buttress.statistics import wilson_interval

EPS, STEPS, DRAWS = 0.1, 400, 20
PARTS = ["surrogate", "draws", "detector", "minimum_norm"]
LEVELS = 3  # gray levels above black
NOISE = 0.3  # standard deviation


class Quantize(nn.Module):
    """Few levels of gray: the gradient is zero almost everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(LEVELS * x) / LEVELS


class AddNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + NOISE * torch.randn_like(x)


def soft_quantize(x: Tensor) -> Tensor:
    """A smooth staircase with the same levels."""
    scaled = LEVELS * x
    return (scaled - torch.sin(2 * torch.pi * scaled) / (2 * torch.pi)) / LEVELS


def make_net(outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, outputs),
    )  # fmt: skip


def train(net: nn.Module, data: Dataset, *, adversarial: bool = False) -> nn.Module:
    """Train with Adam, on adversarial examples of 5 steps or on the images themselves."""
    images, labels = data.images, data.labels
    attack = create_attack("pgd", steps=5)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.randint(len(images), (64,), generator=generator)
        x, y = images[rows], labels[rows]
        if adversarial:
            x = run_attack(attack, net, x, y, bt.NormBall("Linf", EPS)).x_adv
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def percent(estimate: Any) -> str:
    low, high = estimate.interval
    return f"{estimate.accuracy:.1%} ({low:.1%} - {high:.1%})"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def surrogate_table(net: nn.Module, data: Dataset) -> str:
    """Robust accuracy of the quantized input without and with surrogates."""
    model = nn.Sequential(Quantize(), net).eval()
    surrogates = {"none": None, "identity": "identity", "smooth staircase": soft_quantize}
    rows = []
    for attack in ("pgd", "fast"):
        cells = []
        for surrogate in surrogates.values():
            found = bt.evaluate(model, data, [f"{attack}:Linf:{EPS}"], surrogate=surrogate)
            estimate = found.estimate(f"{attack}:Linf:{EPS}")
            cells.append(percent(estimate) + ("" if found.is_trustworthy else ", not trustworthy"))
        rows.append([f"`{attack}`", *cells])
    return table(["attack", *(f"surrogate: {name}" for name in surrogates)], rows)


def draws_table(net: nn.Module, data: Dataset) -> str:
    """Accuracy of the noisy model by single draws and over all of them."""
    model, suite = nn.Sequential(AddNoise(), net).eval(), [f"pgd:Linf:{EPS}"]
    rows = []
    for eot_samples in (1, DRAWS):
        found = bt.evaluate(model, data, suite, eot_samples=eot_samples, draws=DRAWS)
        for name in ("clean", *suite) if eot_samples == 1 else suite:
            single = found.records[name].metadata["draw_accuracies"]
            label = name if name == "clean" else f"`pgd`, {eot_samples} passes averaged"
            lost = 1 - found.every_draw(name).accuracy
            rows.append([label, f"{min(single):.1%} to {max(single):.1%}",
                         percent(found.estimate(name)), f"{lost:.1%}"])  # fmt: skip
    header = ["attack", "single draws", f"mean over {DRAWS} draws", "lost by some draw"]
    return table(header, rows)


def train_detector(data: Dataset) -> nn.Module:
    """A model with an eleventh output, trained to name adversarial examples of the other ten."""
    net, attack = make_net(11), create_attack("pgd", steps=5)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        rows = torch.randint(len(data), (64,), generator=generator)
        x, y = data.images[rows], data.labels[rows]
        if step >= STEPS // 4:
            ball, classes = bt.NormBall("Linf", EPS), ClassOutputs(net)
            x = torch.cat([x, run_attack(attack, classes, x, y, ball).x_adv])
            y = torch.cat([y, torch.full_like(y, 10)])
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def detector_table(data: Dataset) -> str:
    """What the doctor finds for a detector."""
    model = train_detector(load_dataset("digits", "train"))
    found = bt.diagnose(model, data, f"Linf:{EPS}", adapt=True)
    assert found.adaptive is not None
    accuracies = {
        f"`{n}` on the classes" if n != "clean" else n: a for n, a in found.accuracy.items()
    }
    accuracies["`pgd` with the joint loss too"] = found.adaptive.after
    n = len(data)
    rows = [
        [name, "{:.1%} ({:.1%} - {:.1%})".format(a, *wilson_interval(a * n, n))]
        for name, a in accuracies.items()
    ]
    return table(["attack", "correct or rejected"], rows)


def minimum_norm_table(net: nn.Module, data: Dataset, norm: str) -> str:
    """Median distance, optimality and passes of each attack."""
    ours = {"fab-t": {"targets": 3}, "fast": {}, "pgd": {}}
    found = add_peers(bt.minimum_norms(net, data, norm, attacks=ours), net, data)
    rows = []
    for name in sorted(found.distances, key=lambda n: -found.optimality(n)):
        low, high = found.optimality_interval(name)
        rows.append([name if name not in ours else f"`{name}`", f"{found.median(name):.4f}",
                     f"{found.optimality(name):.1%} ({low:.1%} - {high:.1%})",
                     f"{found.passes[name]:,.0f}"])  # fmt: skip
    header = [f"attack, {norm}", "median eps", "optimality", "passes per image"]
    return table(header, rows)


def add_peers(found: MinimumNorms, net: nn.Module, data: Dataset) -> MinimumNorms:
    """Add what FMN and DDN of adv-lib find, as far as it is installed."""
    if importlib.util.find_spec("adv_lib") is None:
        return found
    peers_module = import_adv_lib()
    ddn, fmn = peers_module.ddn, peers_module.fmn
    x, y = data.images, data.labels
    ball = bt.NormBall(found.norm, found.max_eps)
    for steps in (100, 1000):
        power = {"Linf": float("inf"), "L2": 2.0, "L1": 1.0}[found.norm]
        peers: dict[str, Any] = {"FMN": partial(fmn, norm=power)}
        if found.norm == "L2":
            peers["DDN"] = ddn
        for name, attack in peers.items():
            with count_passes(net) as counter:
                x_adv = attack(net, x, y, steps=steps).clamp(0, 1)
            with torch.no_grad():
                clean, adversarial = net(x).argmax(1), net(x_adv).argmax(1)
            distance = ball.perturbation_size(x, x_adv).double()
            distance = distance.where(adversarial != y, torch.inf)
            distance = torch.zeros_like(distance).where(clean != y, distance)
            distances = distance.where(distance <= found.max_eps, torch.inf).numpy()
            passes = counter.total / len(x)
            found = found.with_attack(f"adv-lib {name}, {steps} steps", distances, passes)
    return found


def write_parts(data: Dataset, parts: list[str]) -> Iterator[str]:
    """The chosen tables, one after the other, each with a line above it."""
    yield f"Digits, {len(data)} images, Linf {EPS}; 95% intervals over images."
    training = load_dataset("digits", "train")
    net, robust = make_net(), make_net()  # initialized before anything else draws numbers
    train(net, training)
    if "surrogate" in parts:
        yield f"Quantized input ({LEVELS + 1} levels of gray):"
        yield surrogate_table(net, data)
    if "draws" in parts:
        yield f"Random noise on the input (standard deviation {NOISE}):"
        yield draws_table(net, data)
    if "detector" in parts:
        yield "A detector that rejects adversarial examples:"
        yield detector_table(data)
    if "minimum_norm" in parts:
        yield "Smallest eps that fools an adversarially trained network:"
        train(robust, training, adversarial=True)
        for norm in ("Linf", "L2"):
            yield minimum_norm_table(robust, data, norm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=150)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    written: list[str] = []
    for part in write_parts(load_dataset("digits", limit=args.images), args.parts):
        print(part, end="\n\n", flush=True)
        written.append(part)
        if args.out is not None:
            args.out.write_text("\n\n".join(written) + "\n")


if __name__ == "__main__":
    main()
