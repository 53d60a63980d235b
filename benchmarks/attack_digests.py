"""Digests of what every attack returns on norm balls, to prove that a change leaves them alone.

Run ``python benchmarks/attack_digests.py > before.txt`` before a change and after it.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import torch
from torch import nn

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.errors import UserError

SHORT = {"steps": 12, "queries": 300, "restarts": 2, "targets": 3}
THREATS = ("Linf:8/255", "L2:0.5", "L1:6")


def small_net(size: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * ((size - 1) // 2) ** 2, 10),
    ).eval()  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    model, source = small_net(), torch.Generator().manual_seed(1)
    x = torch.rand(24, 3, 12, 12, generator=source)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[::6] = (y[::6] + 1) % 10
    for name in ATTACKS.names():
        known = inspect.signature(ATTACKS.get(name)).parameters
        args: dict[str, Any] = {k: v for k, v in SHORT.items() if k in known}
        if "sources" in known:
            args["sources"] = [small_net()]
        for threat in THREATS:
            for seed in (0, 1, 2):
                try:
                    x_adv = bt.attack(name, model, x, y, threat=threat, seed=seed, **args)
                except UserError:
                    continue
                digest = hashlib.sha256(x_adv.numpy().tobytes()).hexdigest()[:16]
                print(name, threat, seed, digest, flush=True)


if __name__ == "__main__":
    main()
