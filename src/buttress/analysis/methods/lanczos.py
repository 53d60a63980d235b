"""The ends of the spectrum of a symmetric matrix, and its trace, from products with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MatrixVectorProduct = Callable[[Tensor], Tensor]  # v (n,) -> A v (n,)


class ExtremeEigenvalues(NamedTuple):
    """The outermost eigenvalues, and the eigenvector of the largest."""

    largest: float
    lowest: float
    residual: float  # an eigenvalue is within this of `largest`
    num_products: int
    vector: Tensor  # (n,), of length 1


def lanczos(
    product: MatrixVectorProduct, start: Tensor, *, steps: int, tolerance: float = 1e-3
) -> ExtremeEigenvalues:
    """Largest and smallest eigenvalue by the Lanczos method.

    Each new vector is made orthogonal to all before it, twice, because of float32 rounding; so up
    to ``steps`` vectors are kept. Ends early when the residual is below ``tolerance`` times the
    value.
    """
    steps = min(steps, len(start))
    basis = start.new_empty(steps, len(start))
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for step in range(steps):
        span = basis[: step + 1]
        vector = product(span[-1])
        size = float(vector.norm())
        diagonal.append(float(vector.double() @ span[-1].double()))
        for _ in range(2):
            vector = vector - span.T @ (span @ vector)
        length = float(vector.norm())
        values, vectors = _tridiagonal_eigen(diagonal, off_diagonal)
        largest, residual = float(values[-1]), length * abs(float(vectors[-1, -1]))
        is_invariant = length <= 1e-6 * max(size, 1e-30)  # nothing new: the space is invariant
        if is_invariant or residual <= tolerance * abs(largest) or step + 1 == steps:
            break
        off_diagonal.append(length)
        basis[step + 1] = vector / length
    vector = span.T @ vectors[:, -1].to(span)
    return ExtremeEigenvalues(largest, float(values[0]), residual, len(span), vector)


def _tridiagonal_eigen(diagonal: list[float], off_diagonal: list[float]) -> tuple[Tensor, Tensor]:
    """Of the small tridiagonal matrix, whose eigenvalues are those of the whole, nearly."""
    small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if off_diagonal:
        off = torch.tensor(off_diagonal, dtype=torch.float64)
        small = small + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(small)
    return values, vectors


class TraceEstimate(NamedTuple):
    """An estimate with its standard error; that of one probe is not known."""

    value: float
    error: float | None
    per_probe: Tensor  # (probes,)


def hutchinson(
    product: MatrixVectorProduct, size: int, probes: int, generator: torch.Generator
) -> TraceEstimate:
    """The trace as the mean of v'Av over vectors of random signs."""
    estimates = []
    for _ in range(probes):
        signs = torch.randint(0, 2, (size,), generator=generator).mul_(2).sub_(1).float()
        estimates.append(float(signs.double() @ product(signs).double().cpu()))
    values = torch.tensor(estimates, dtype=torch.float64)
    error = float(values.std() / math.sqrt(probes)) if probes > 1 else None
    return TraceEstimate(float(values.mean()), error, values)
