"""The one-block attention network of the bound: a matrix, a ReLU and a matrix.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization", arXiv:2209.14105: f(x) = W phi(A x) with A = softmax(Q K^T / sqrt(d) + B) V.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.data import Dataset
from buttress.errors import UserError
from buttress.streams import generator

WIDTH = 8  # of queries and keys
HEAD = 2  # values per token
RATE = 0.02


class AttentionBlock(nn.Module):
    """Patches are tokens; each token takes a mixture of all, then one value map, ReLU and a head.

    Queries and keys belong to the places of the tokens, not to what the tokens hold: only then is A
    the fixed matrix that the theorem takes norms of. With S the (T, T) softmax and V the (pixels,
    HEAD) value map, A is the Kronecker product of S and V^T.
    """

    def __init__(self, image_size: int, patch: int, classes: int, seed: int) -> None:
        super().__init__()
        if patch < 1 or image_size % patch:
            raise UserError(f"`patch` must divide the image size {image_size}, but got {patch}")
        self.patch = patch
        tokens, pixels = (image_size // patch) ** 2, patch**2
        source = generator("attention block", seed)

        def drawn(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(*shape, generator=source))

        self.query, self.key = (drawn(tokens, WIDTH, scale=1.0) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(tokens, tokens))
        self.value = drawn(pixels, HEAD, scale=1 / math.sqrt(pixels))
        self.head = drawn(classes, tokens * HEAD, scale=1 / math.sqrt(tokens * HEAD))

    def attention(self) -> Tensor:
        """(T, T) the shares each token takes from each."""
        return (self.query @ self.key.T / math.sqrt(WIDTH) + self.bias).softmax(1)

    def inner(self) -> Tensor:
        """(m, d) the matrix A on flat inputs."""
        return torch.kron(self.attention(), self.value.T.contiguous())

    def flat(self, images: Tensor) -> Tensor:
        """(N, d) grey images, token by token."""
        return F.unfold(images.mean(1, keepdim=True), self.patch, stride=self.patch).mT.flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        tokens = F.unfold(images.mean(1, keepdim=True), self.patch, stride=self.patch).mT
        hidden = (self.attention() @ tokens @ self.value).flatten(1)
        return hidden.relu() @ self.head.T

    def l1(self) -> Tensor:
        """The sum of the absolute entries of both matrices."""
        return self.inner().abs().sum() + self.head.abs().sum()


def fit(block: AttentionBlock, data: Dataset, *, penalty: float, steps: int) -> None:
    """Trains on all images at once: cross-entropy plus ``penalty`` times the l1 norms."""
    x, y, _ = data.take(torch.arange(len(data)))
    optimiser = torch.optim.Adam(block.parameters(), lr=RATE)
    for _ in range(steps):
        loss = F.cross_entropy(block(x), y) + penalty * block.l1()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    optimiser.zero_grad()
    block.eval()
