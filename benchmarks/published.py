"""The published network that the other benchmarks attack, and the images they attack it with."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import buttress as bt

STRUCTURE = Path(__file__).parent.parent / "examples" / "resnet2b.py"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


def parser_for_resnet2b(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("checkpoint", help="resnet2b.pth, published with alpha-beta-CROWN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser


def resnet2b(checkpoint: str) -> nn.Module:
    model = bt.load_model(checkpoint, model=f"{STRUCTURE}:ResNet2B", mean=MEAN, std=STD)
    return model.eval().requires_grad_(False)


def first_test_images(count: int) -> tuple[Tensor, Tensor]:
    """The first test images of CIFAR-10."""
    data = bt.load_dataset("cifar10", "test", limit=count)
    x, y, _ = data.take(torch.arange(count))
    return x, y
