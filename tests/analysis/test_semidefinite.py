"""The semidefinite limit against an exhaustive search over signs."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from buttress.analysis.methods.semidefinite import (
    Matrix,
    coupling_matrix,
    import_cvxpy,
    solve_relaxation,
    solve_relaxations,
    trivial_upper_bound,
)
from buttress.errors import UserError


def searched(outer: Matrix, inner: Matrix) -> float:
    """The largest l1 norm of the gradient over all patterns of active units."""
    patterns = np.array(list(itertools.product((0.0, 1.0), repeat=len(outer))))
    return float(np.abs((patterns * outer) @ inner).sum(1).max())


def random_network(seed: int, width: int = 4, hidden: int = 5) -> tuple[Matrix, Matrix]:
    source = np.random.default_rng(seed)
    return source.normal(size=hidden), source.normal(size=(hidden, width))


def test_the_matrix_is_four_times_the_change() -> None:
    """y^T Q y / 4 with y = (1, t, 2 s - 1) is the change for signs t and slopes s."""
    outer, inner = random_network(0)
    matrix = coupling_matrix(outer, inner)
    source = np.random.default_rng(1)
    for _ in range(20):
        signs, slopes = source.choice([-1.0, 1.0], 4), source.random(5)
        y = np.concatenate([[1.0], signs, 2 * slopes - 1])
        assert y @ matrix @ y / 4 == pytest.approx(signs @ inner.T @ (outer * slopes))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_a_limit_and_solved_well(seed: int) -> None:
    outer, inner = random_network(seed)
    matrix = coupling_matrix(outer, inner)
    result = solve_relaxation(matrix)
    assert result.upper / 4 >= searched(outer, inner) - 1e-9
    assert result.lower <= result.upper <= trivial_upper_bound(matrix) + 1e-9
    assert result.lower == pytest.approx(result.upper, rel=0.01)
    turned = solve_relaxation(-matrix)  # the value for z = -1
    assert turned.lower <= result.upper + 1e-9
    assert result.lower <= turned.upper + 1e-9


def test_it_is_tight_where_all_signs_agree() -> None:
    diagonal = (np.array([1.0, -2.0, 0.5]), np.diag([3.0, 1.0, -1.0]))
    rank_one = (np.array([1.0, 2.0]), np.outer([1.0, 0.5], [1.0, -2.0, 3.0]))
    for outer, inner in (diagonal, rank_one):
        exact = searched(outer, inner)
        result = solve_relaxation(coupling_matrix(outer, inner))
        assert exact == pytest.approx(np.abs(inner.T * outer).sum())
        assert result.upper / 4 == pytest.approx(exact, rel=0.005)


def test_rough_answers_of_the_solver_are_made_good() -> None:
    outer, inner = random_network(9)
    rough, fine = (
        solve_relaxation(coupling_matrix(outer, inner), tolerance) for tolerance in (0.3, 1e-6)
    )
    assert rough.lower <= fine.upper
    assert rough.upper >= fine.lower
    assert rough.upper - rough.lower > fine.upper - fine.lower


def test_the_printed_matrix_is_no_limit() -> None:
    """relu(x1 - x2) changes by 2 eps; the matrix as printed allows eps."""
    outer, inner = np.array([1.0]), np.array([[1.0, -1.0]])
    assert searched(outer, inner) == 2
    assert solve_relaxation(coupling_matrix(outer, inner)).upper / 4 == pytest.approx(2, rel=0.005)
    assert solve_relaxation(coupling_matrix(outer, inner, "printed")).upper / 4 == pytest.approx(
        1, rel=0.005
    )


def test_the_largest_of_several_is_found_without_solving_all() -> None:
    matrices = [scale * coupling_matrix(*random_network(2)) for scale in (0.01, 1.0, 0.02)]
    done: list[int] = []
    result = solve_relaxations(matrices, lambda: done.append(1))
    assert result == solve_relaxation(matrices[1])
    assert len(done) == 3


def test_nothing_comes_from_nothing() -> None:
    assert solve_relaxation(coupling_matrix(np.zeros(2), np.ones((2, 3)))) == (0.0, 0.0)


def test_without_cvxpy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(UserError, match=r"pip install buttress\[bounds\]"):
        import_cvxpy()
