"""ResNet-2B, the small network published with the alpha-beta-CROWN verifier.

Its weights are not shipped. With them at hand:

    buttress evaluate resnet2b.pth --model examples/resnet2b.py:OnImages --data cifar10
"""

import torch
from torch import Tensor, nn

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        short = nn.Conv2d(inputs, outputs, 1, stride)
        self.shortcut = nn.Sequential(*([short] if inputs != outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.conv1(x).relu()) + self.shortcut(x)).relu()


class ResNet2B(nn.Module):
    """Logits of normalised 32 x 32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.linear1, self.linear2 = nn.Linear(1024, 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.conv1(x).relu())
        return self.linear2(self.linear1(x.flatten(1)).relu())


class OnImages(ResNet2B):
    """Logits of images in [0, 1]: the normalisation it was trained with comes first."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device) for v in (MEAN, STD))
        return super().forward((x - mean.view(-1, 1, 1)) / std.view(-1, 1, 1))
