"""One-block attention model of the generalization bound: a matrix, a ReLU and a matrix.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization", arXiv:2209.14105: f(x) = W phi(A x) with A = softmax(Q K^T / sqrt(d) + B) V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.config import Spec
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.system.rng import make_generator

QUERY_WIDTH = 8  # of queries and keys
VALUE_WIDTH = 2  # values per token
LEARNING_RATE = 0.02


class BoundAttentionBlock(nn.Module):
    """Patches are tokens; each token takes a mixture of all, then one value map, ReLU and a head.

    Queries and keys belong to the places of the tokens, not to what the tokens hold: only then is A
    the fixed matrix that the theorem takes norms of. With S the (T, T) softmax and V the (pixels,
    HEAD) value map, A is the Kronecker product of S and V^T.
    """

    def __init__(self, image_size: int, patch: int, classes: int, seed: int) -> None:
        super().__init__()
        if patch < 1 or image_size % patch:
            raise UserError(f"`patch` must divide image_size={image_size}, but got patch={patch}")
        self.patch = patch
        tokens, pixels = (image_size // patch) ** 2, patch**2
        rng = make_generator("attention block", seed)

        def random_parameter(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(*shape, generator=rng))

        self.query, self.key = (random_parameter(tokens, QUERY_WIDTH, scale=1.0) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(tokens, tokens))
        self.value = random_parameter(pixels, VALUE_WIDTH, scale=1 / math.sqrt(pixels))
        self.head = random_parameter(
            classes, tokens * VALUE_WIDTH, scale=1 / math.sqrt(tokens * VALUE_WIDTH)
        )

    def attention(self) -> Tensor:
        """(T, T) attention weights of the tokens."""
        return (self.query @ self.key.T / math.sqrt(QUERY_WIDTH) + self.bias).softmax(1)

    def inner_matrix(self) -> Tensor:
        """(m, d) the matrix A on flat inputs."""
        return torch.kron(self.attention(), self.value.T.contiguous())

    def flatten_images(self, images: Tensor) -> Tensor:
        """(N, d) gray images, token by token."""
        return F.unfold(images.mean(1, keepdim=True), self.patch, stride=self.patch).mT.flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        tokens = F.unfold(images.mean(1, keepdim=True), self.patch, stride=self.patch).mT
        hidden = (self.attention() @ tokens @ self.value).flatten(1)
        return hidden.relu() @ self.head.T

    def l1_norm(self) -> Tensor:
        """The sum of the absolute entries of both matrices."""
        return self.inner_matrix().abs().sum() + self.head.abs().sum()


def train_block(block: BoundAttentionBlock, data: Dataset, *, penalty: float, steps: int) -> None:
    """Train on all images at once: cross-entropy plus ``penalty`` times the l1 norms."""
    x, y, _ = data.take(torch.arange(len(data)))
    optimizer = torch.optim.Adam(block.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        loss = F.cross_entropy(block(x), y) + penalty * block.l1_norm()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    block.eval()


MARGIN, SAMPLE_SIZE_TERM, CAPACITY, ADVERSARY, CONFIDENCE = (
    "margin", "4/n^1.5", "capacity", "adversary", "confidence",
)  # fmt: skip
MAX_IMAGES = 1e30  # images


class BlockNorms(Spec):
    """The norms of the two matrices that the bound takes."""

    inner_spectral: float  # s1
    outer_spectral: float  # s2
    inner_l1: float  # b1, the sum of absolute entries
    outer_l1: float  # b2


def block_norms(inner: Tensor, outer: Tensor) -> BlockNorms:
    return BlockNorms(
        inner_spectral=float(torch.linalg.matrix_norm(inner, 2)),
        outer_spectral=float(torch.linalg.matrix_norm(outer, 2)),
        inner_l1=float(inner.abs().sum()),
        outer_l1=float(outer.abs().sum()),
    )


@dataclass(frozen=True)
class BoundSample:
    """What the bound takes from the training images and the shape of the model."""

    count: int
    mean_squared_norm: float  # mean of the squared length of an image
    width: int  # the largest dimension of input, hidden layer and output
    eps: float
    delta: float


def bound_terms(
    norms: BlockNorms, sample: BoundSample, gamma: float, margin_fraction: float
) -> dict[str, float]:
    r"""The right-hand side of the theorem, one term at a time.

    .. math::
        \tfrac{1}{n} \sum_i E_i + \tfrac{1}{\gamma} \Bigl( \tfrac{4}{n^{3/2}} +
        \tfrac{60 \log n \log(2 d_{\max})}{n} s_1 s_2 C \Bigr) +
        \tfrac{2 \epsilon b_1 b_2}{\gamma \sqrt n} + 3 \sqrt{\tfrac{\log(2/\delta)}{2n}}

    with :math:`C = ((b_1/s_1)^{2/3} + (b_2/s_2)^{2/3})^{3/2} \|X\|_F` and ``margin_fraction``
    for the first sum. Readings of what arXiv:2209.14105 leaves open: the norm p is the spectral
    one, as in arXiv:1810.11914; both b are sums of absolute entries; the last logarithm holds
    delta, where p is printed.
    """
    n = sample.count
    s1, s2 = norms.inner_spectral, norms.outer_spectral
    b1, b2 = norms.inner_l1, norms.outer_l1
    # s1 s2 ((b1/s1)^(2/3) + (b2/s2)^(2/3))^(3/2), written so that zero matrices divide nothing
    product = ((b1 * s2) ** (2 / 3) + (b2 * s1) ** (2 / 3)) ** 1.5
    data = math.sqrt(n * sample.mean_squared_norm)
    logs = 60 * math.log(n) * math.log(2 * sample.width)
    return {
        MARGIN: margin_fraction,
        SAMPLE_SIZE_TERM: 4 / (gamma * n**1.5),
        CAPACITY: logs / n * product * data / gamma,
        ADVERSARY: 2 * sample.eps * b1 * b2 / (gamma * math.sqrt(n)),
        CONFIDENCE: 3 * math.sqrt(math.log(2 / sample.delta) / (2 * n)),
    }


def images_needed(
    norms: BlockNorms, sample: BoundSample, gamma: float, margin_fraction: float
) -> float | None:
    """Approximate number of images at which the bound falls below one."""
    if margin_fraction >= 1:
        return None
    count = float(sample.count)
    while count < MAX_IMAGES:
        larger = replace(sample, count=int(count))
        if sum(bound_terms(norms, larger, gamma, margin_fraction).values()) < 1:
            return count
        count *= 1.1
    return None
