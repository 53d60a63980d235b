"""A training that collapses: one step at a large eps learns to deceive its own attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buttress.results.run import Run
from buttress.training import train

RECIPE = """
epochs: {epochs}
batch_size: 32
objective: {{name: fast, args: {{rel_step: 1.0, start: clean}}}}
threat: Linf:0.22
eps_zero_epochs: 2
eps_warmup_epochs: 6
optimizer: {{name: adamw, lr: 0.004}}
schedule: {{name: constant}}
validation: {{attack: {{name: pgd, args: {{steps: 20}}}}, limit: 179}}
on_collapse: {what}
"""

NET = """
from torch import nn
def net(num_classes=10):
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, num_classes))
"""


def go(place: Path, out: str, what: str, epochs: int, **more: Any) -> Run:
    (place / "net.py").write_text(NET)
    (place / f"{what}.yaml").write_text(RECIPE.format(epochs=epochs, what=what))
    return train(f"{place}/net.py:net", "digits", place / f"{what}.yaml", place / out, limit=640,
                 device="cpu", **more)  # fmt: skip
