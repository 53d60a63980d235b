"""The terms of the generalisation bound for a network with one hidden layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from buttress.spec import Spec

MARGIN, SMALL, CAPACITY, ADVERSARY, CHANCE = (
    "margin", "4/n^1.5", "capacity", "adversary", "confidence",
)  # fmt: skip
MANY = 1e30  # images: no use in looking further


class Norms(Spec):
    """The norms of the two matrices that the bound takes."""

    inner_spectral: float  # s1
    outer_spectral: float  # s2
    inner_l1: float  # b1, the sum of absolute entries
    outer_l1: float  # b2


def norms_of(inner: Tensor, outer: Tensor) -> Norms:
    return Norms(
        inner_spectral=float(torch.linalg.matrix_norm(inner, 2)),
        outer_spectral=float(torch.linalg.matrix_norm(outer, 2)),
        inner_l1=float(inner.abs().sum()),
        outer_l1=float(outer.abs().sum()),
    )


@dataclass(frozen=True)
class Sample:
    """What the bound takes from the training images and the shape of the network."""

    count: int
    squares: float  # mean of the squared length of an image
    width: int  # the largest dimension of input, hidden layer and output
    eps: float
    delta: float


def terms(norms: Norms, sample: Sample, gamma: float, share: float) -> dict[str, float]:
    r"""The right-hand side of the theorem, one term at a time.

    .. math::
        \tfrac{1}{n} \sum_i E_i + \tfrac{1}{\gamma} \Bigl( \tfrac{4}{n^{3/2}} +
        \tfrac{60 \log n \log(2 d_{\max})}{n} s_1 s_2 C \Bigr) +
        \tfrac{2 \epsilon b_1 b_2}{\gamma \sqrt n} + 3 \sqrt{\tfrac{\log(2/\delta)}{2n}}

    with :math:`C = ((b_1/s_1)^{2/3} + (b_2/s_2)^{2/3})^{3/2} \|X\|_F` and ``share`` for the first
    sum. Readings of what arXiv:2209.14105 leaves open: the norm p is the spectral one, as in
    arXiv:1810.11914; both b are sums of absolute entries; the last logarithm holds delta, where p
    is printed.
    """
    n = sample.count
    s1, s2 = norms.inner_spectral, norms.outer_spectral
    b1, b2 = norms.inner_l1, norms.outer_l1
    # s1 s2 ((b1/s1)^(2/3) + (b2/s2)^(2/3))^(3/2), written so that zero matrices divide nothing
    product = ((b1 * s2) ** (2 / 3) + (b2 * s1) ** (2 / 3)) ** 1.5
    data = math.sqrt(n * sample.squares)
    logs = 60 * math.log(n) * math.log(2 * sample.width)
    return {
        MARGIN: share,
        SMALL: 4 / (gamma * n**1.5),
        CAPACITY: logs / n * product * data / gamma,
        ADVERSARY: 2 * sample.eps * b1 * b2 / (gamma * math.sqrt(n)),
        CHANCE: 3 * math.sqrt(math.log(2 / sample.delta) / (2 * n)),
    }


def images_needed(norms: Norms, sample: Sample, gamma: float, share: float) -> float | None:
    """About how many images would bring the bound below one, were all else the same."""
    if share >= 1:
        return None
    count = float(sample.count)
    while count < MANY:
        if sum(terms(norms, replace(sample, count=int(count)), gamma, share).values()) < 1:
            return count
        count *= 1.1
    return None
