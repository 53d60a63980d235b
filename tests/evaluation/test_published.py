"""A network that others trained and published gets the accuracies that they published."""

from __future__ import annotations

from pathlib import Path

import pytest

from buttress.data import load_dataset
from buttress.errors import DataError
from buttress.evaluation import evaluate
from buttress.models import load_model

CHECKPOINT = Path(__file__).parents[3] / "shared" / "checkpoints" / "resnet2b.pth"
STRUCTURE = '''
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        short = nn.Conv2d(inputs, outputs, 1, stride)
        self.shortcut = nn.Sequential(*([short] if inputs != outputs else []))

    def forward(self, x):
        return (self.conv2(self.conv1(x).relu()) + self.shortcut(x)).relu()


class ResNet2B(nn.Module):
    """Published with the alpha-beta-CROWN verifier."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.linear1, self.linear2 = nn.Linear(1024, 100), nn.Linear(100, 10)

    def forward(self, x):
        x = self.layer1(self.conv1(x).relu())
        return self.linear2(self.linear1(x.flatten(1)).relu())
'''


@pytest.mark.reference
@pytest.mark.skipif(not CHECKPOINT.is_file(), reason="the published checkpoint is not here")
def test_resnet_2b_has_its_published_accuracies(tmp_path: Path) -> None:
    try:
        data = load_dataset("cifar10", "test")
    except DataError as error:
        pytest.skip(str(error))
    (tmp_path / "resnet2b.py").write_text(STRUCTURE)
    model = load_model(
        CHECKPOINT,
        model=f"{tmp_path}/resnet2b.py:ResNet2B",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2471, 0.2435, 0.2616),
    )
    # 20 steps on the margin to each of the four nearest classes, the step falling from 2 eps to 0.
    args = {"steps": 20, "loss": "margin", "target": "each", "restarts": 4, "rel_step": 2.0}
    strong = {**args, "schedule": "cosine"}
    suite = [{"name": "pgd", "attack": "pgd", "threat": "Linf:2/255", "args": strong}]
    found = evaluate(model, data, suite, batch_size=500)  # type: ignore[arg-type]
    assert len(found) == 10_000
    assert found.accuracy["clean"] == 0.6925  # published: 69.25%
    assert found.accuracy["pgd"] <= 0.549  # published PGD: 54.82%
    assert found.accuracy["pgd"] >= 0.2688  # published verified: no attack can go below
