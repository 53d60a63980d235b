"""Semidefinite bound on the output change of a one-hidden-layer model.

The relaxation is that of Raghunathan, Steinhardt and Liang, "Certified Defenses against Adversarial
Examples", arXiv:1801.09344, as Yin et al. (arXiv:1810.11914) and Tang et al. (arXiv:2209.14105)
use it in their bounds. It needs cvxpy: ``pip install buttress[bounds]``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from buttress.errors import UserError

Matrix = NDArray[np.float64]
CouplingForm = Literal["valid", "printed"]
ITERATIONS = 20_000
TOLERANCE = 3e-4  # of the solver; the values hold whatever it is


class ProvenInterval(NamedTuple):
    """The optimum lies between two values, each of them proven by a feasible point."""

    lower: float
    upper: float


def coupling_matrix(outer: Matrix, inner: Matrix, form: CouplingForm = "valid") -> Matrix:
    r"""The matrix Q of one output :math:`w^T \phi(A x)`, with w (m,) and A (m, d).

    Where the slopes of :math:`\phi` lie in [0, 1], the output changes in an Linf ball by at most
    eps times the largest :math:`t^T A^T \mathrm{diag}(w)\, s` over :math:`t \in [-1, 1]^d` and
    :math:`s \in [0, 1]^m`. With :math:`s = (1 + u) / 2` and :math:`y = (1, t, u)` that is a quarter
    of :math:`y^T Q y`, so at most a quarter of :math:`\max \langle Q, P \rangle` over
    :math:`P \succeq 0` with a diagonal of at most one.

    Departure from the paper: the constant 1 belongs with the signs t of the input, by
    :math:`A^T w`. arXiv:2209.14105 prints :math:`1^T A^T \mathrm{diag}(w)` beside the hidden units
    u, which is no limit: for :math:`\phi(x_1 - x_2)` it allows a change by eps, and 2 eps is
    possible. ``form="printed"`` gives that matrix.
    """
    product = inner.T * outer  # (d, m)
    width, hidden = product.shape
    half = np.zeros((1 + width + hidden,) * 2)
    half[1 : 1 + width, 1 + width :] = product
    if form == "valid":
        half[0, 1 : 1 + width] = product.sum(1)
    else:
        half[0, 1 + width :] = product.sum(0)
    return half + half.T


def solve_relaxation(matrix: Matrix, tolerance: float = TOLERANCE) -> ProvenInterval:
    r"""The largest :math:`\langle Q, P \rangle` over :math:`P \succeq 0`, :math:`P_{ii} \le 1`.

    The dual is solved: the smallest :math:`\sum_i \lambda_i` with
    :math:`\mathrm{diag}(\lambda) \succeq Q`. What the solver returns is made feasible, so that both
    values hold whatever its accuracy. With -Q in place of Q the value is the same: Q couples two
    groups only, and turning the signs of one group turns its sign. So one problem answers both z.
    """
    scale = float(np.abs(matrix).max(initial=0.0))
    if scale == 0:
        return ProvenInterval(0.0, 0.0)
    multipliers, weights = _solve_dual(matrix / scale, tolerance)
    upper = min(_feasible_upper(matrix / scale, multipliers) * scale, trivial_upper_bound(matrix))
    return ProvenInterval(_feasible_lower(matrix / scale, weights) * scale, upper)


def solve_relaxations(matrices: Sequence[Matrix], advance: Callable[[], None]) -> ProvenInterval:
    """The largest value of several matrices; those that cannot hold it are not solved."""
    best = ProvenInterval(0.0, 0.0)
    for matrix in sorted(matrices, key=trivial_upper_bound, reverse=True):
        if trivial_upper_bound(matrix) > best.lower:
            interval = solve_relaxation(matrix)
            best = ProvenInterval(max(best.lower, interval.lower), max(best.upper, interval.upper))
        advance()
    return best


def trivial_upper_bound(matrix: Matrix) -> float:
    """A limit without solving anything: no entry of P is above one in size."""
    return float(np.abs(matrix).sum())


def _solve_dual(matrix: Matrix, tolerance: float) -> tuple[Matrix, Matrix]:
    cp = import_cvxpy()
    multipliers = cp.Variable(len(matrix))
    above = cp.diag(multipliers) - matrix >> 0
    problem = cp.Problem(cp.Minimize(cp.sum(multipliers)), [above])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about accuracy, which the feasible points make good
        problem.solve(solver=cp.SCS, eps=tolerance, max_iters=ITERATIONS)
    if multipliers.value is None:
        return np.abs(matrix).sum(1), np.zeros_like(matrix)  # feasible by Gershgorin
    return multipliers.value, above.dual_value


def _feasible_upper(matrix: Matrix, multipliers: Matrix) -> float:
    """The sum of multipliers after the shift that makes them feasible."""
    missing = float(np.linalg.eigvalsh(matrix - np.diag(multipliers))[-1])
    return float(multipliers.sum() + len(matrix) * max(missing, 0.0))


def _feasible_lower(matrix: Matrix, weights: Matrix) -> float:
    """The objective at the nearest semidefinite matrix, with its diagonal cut to one."""
    values, vectors = np.linalg.eigh((weights + weights.T) / 2)
    semidefinite = (vectors * values.clip(0)) @ vectors.T
    diagonal_scale = 1 / np.sqrt(np.diag(semidefinite).clip(1.0))
    return float((matrix * semidefinite * np.outer(diagonal_scale, diagonal_scale)).sum())


def import_cvxpy() -> Any:
    """Cvxpy, or an error that says how to get it."""
    try:
        return importlib.import_module("cvxpy")
    except ImportError:
        raise UserError(
            "the semidefinite term needs cvxpy; install it with `pip install buttress[bounds]`"
        ) from None
