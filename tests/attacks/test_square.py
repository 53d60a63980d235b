"""Square attack: sizes and places of the windows, stripes, patterns, and what a step changes."""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch import Tensor

from buttress.attacks.core import create_attack
from buttress.attacks.losses import margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.square import attack as squares
from buttress.attacks.square import proposals as square_patches
from buttress.attacks.square import speculative as square_sprint
from buttress.attacks.square import windows as square_windows
from buttress.attacks.square.attack import Square
from buttress.attacks.square.proposals import SquareState
from buttress.attacks.square.windows import (
    bump_pattern,
    draw_query_bits,
    pattern_bank,
    window_side_schedule,
)
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.system.rng import SampleRNG, splitmix64
from buttress.threats.norm_ball import NORMS, Norm, NormBall
from conftest import Linear, images, small_net, thinned

EPS = 0.05
QUERIES = (0, 11, 51, 201, 501, 1001, 2001, 4001)  # the first ones of each size


def problem_of(norm: Norm, ids: Tensor, shape: tuple[int, ...] = (3, 8, 8)) -> Problem:
    """Grey images, so that the box cuts nothing and a change shows; one query at a time."""
    x = torch.full((len(ids), *shape), 0.5, dtype=torch.float64)
    y = torch.zeros(len(ids), dtype=torch.int64)
    model = Linear(x[0].numel(), 3).double()
    return Problem(
        model, x, y, NormBall(norm, EPS), SampleRNG(0, "square", ids), saturating_batch=1
    )


def begun(problem: Problem) -> SquareState:
    state = Square().init_state(problem, torch.zeros_like(problem.y))
    assert isinstance(state, SquareState)
    return state


def proposed(problem: Problem, query: int, best_x: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The best points and what is tried next; points that were given are kept, as very good."""
    state, loss = begun(problem), problem.x.new_zeros(len(problem.x))
    state.step += query
    if best_x is not None:
        state.best_x, state.best_margin = best_x.clone(), loss + 1
    Square().next_points(problem, state, ModelOutput(loss[:, None], loss, None))
    return state.best_x, Square()._propose_query(problem, state)


@pytest.mark.parametrize(
    ("size", "norm", "expected"),
    [
        (32, "Linf", [29, 20, 14, 10, 7, 5, 4, 3]),
        (32, "L2", [29, 21, 15, 11, 7, 5, 5, 3]),
        (32, "L1", [29, 21, 15, 11, 7, 5, 5, 3]),
        (28, "Linf", [25, 18, 13, 9, 6, 4, 3, 2]),
        (28, "L2", [25, 19, 13, 9, 7, 5, 3, 3]),
        (28, "L1", [25, 19, 13, 9, 7, 5, 3, 3]),
        (224, "Linf", [200, 142, 100, 71, 50, 35, 25, 18]),
    ],
)
def test_sides_of_the_windows(size: int, norm: Norm, expected: list[int]) -> None:
    table = window_side_schedule(5000, 0.8, size, size, norm)
    assert len(table) == 5000
    assert table[list(QUERIES)].tolist() == expected
    assert table[[query - 1 for query in QUERIES[1:]]].tolist() == expected[:-1]
    assert bool((table.diff() <= 0).all())


@pytest.mark.parametrize(("query", "side"), [(11, 5), (201, 3)])
def test_every_place_but_the_last_is_drawn(query: int, side: int) -> None:
    problem = problem_of("Linf", torch.arange(2000))
    old, new = proposed(problem, query, problem.x)
    changed = (new != old).any(1)  # (N, H, W)
    for axis in (1, 2):
        first = changed.any(axis).int().argmax(1)
        counts = first.bincount()
        assert len(counts) == 8 - side, "a window could begin at 8 - side, and never does"
        share = counts / 2000 * (8 - side)
        assert bool(((share > 0.8) & (share < 1.2)).all())


@pytest.mark.parametrize(("query", "side"), [(0, 7), (11, 5), (201, 3), (4001, 1)])
def test_a_step_in_linf_changes_one_square_by_eps_with_one_sign_per_channel(
    query: int, side: int
) -> None:
    problem = problem_of("Linf", torch.arange(50))
    old, new = proposed(problem, query, problem.x)
    signs = set()
    for move in (new - old).unbind():  # (C, H, W)
        rows, columns = (move.ne(0).any(0).any(axis).nonzero()[:, 0] for axis in (1, 0))
        assert len(rows) == len(columns) == side
        window = move[:, rows[0] : rows[0] + side, columns[0] : columns[0] + side]
        torch.testing.assert_close(window.abs(), torch.full_like(window, EPS))
        sign = window.sign().flatten(1)
        assert bool((sign == sign[:, :1]).all())
        signs.add(tuple(sign[:, 0].int().tolist()))
    assert len(signs) == 8, "channels have signs of their own"


def test_a_step_in_linf_keeps_the_best_point_outside_the_square() -> None:
    problem = problem_of("Linf", torch.arange(20))
    start = begun(problem).x_t
    old, new = proposed(problem, 201)
    assert torch.equal(old, start)
    assert bool(((new != old).any(1).flatten(1).sum(1) <= 9).all())
    assert not problem.threat.excess(problem.x, new).any()


def test_only_a_better_point_is_kept() -> None:
    problem = problem_of("Linf", torch.arange(3))
    state, first = begun(problem), begun(problem).x_t
    loss = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    state.x_t = Square().next_points(problem, state, ModelOutput(loss[:, None], loss, None))
    state.step += 1
    second = state.x_t.clone()
    loss = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)  # worse, the same, better
    Square().next_points(problem, state, ModelOutput(loss[:, None], loss, None))
    assert torch.equal(state.best_x, torch.stack([first[0], first[1], second[2]]))
    assert state.best_margin.tolist() == [1.0, 1.0, 1.5]


def test_the_start_in_linf_is_vertical_stripes() -> None:
    problem = problem_of("Linf", torch.arange(20))
    delta = begun(problem).x_t - problem.x
    assert torch.equal(delta, delta[:, :, :1].expand_as(delta)), "the same down the rows"
    torch.testing.assert_close(delta.abs(), torch.full_like(delta, EPS))
    signs = delta[:, :, 0].sign()
    assert abs(float(signs.mean())) < 0.2
    assert len({tuple(row.flatten().tolist()) for row in signs}) == 20


@pytest.mark.parametrize("query", [0, 11, 201, 4001])
def test_points_in_l2_lie_on_the_sphere(query: int) -> None:
    problem = problem_of("L2", torch.arange(20))
    for point in proposed(problem, query):
        length = problem.threat.perturbation_size(problem.x, point)
        torch.testing.assert_close(length, torch.full_like(length, EPS))


@pytest.mark.parametrize("query", [0, 11, 201, 4001])
def test_points_in_l1_lie_in_the_ball_and_near_its_border(query: int) -> None:
    problem = problem_of("L1", torch.arange(20))
    for point in proposed(problem, query):
        length = problem.threat.perturbation_size(problem.x, point)
        assert bool((length <= EPS).all())
        assert bool((length > 0.99 * EPS).all())


@pytest.mark.parametrize("norm", ["L2", "L1"])
@pytest.mark.parametrize("side", range(2, 12))
def test_patterns_have_unit_norm_and_two_opposite_halves(norm: Norm, side: int) -> None:
    shape = bump_pattern(side, norm)
    order = 2 if norm == "L2" else 1
    assert shape.shape == (side, side)
    assert float(shape.abs().pow(order).sum()) == pytest.approx(1.0)
    upper, lower = shape[: side // 2], shape[side // 2 :]
    assert bool((upper > 0).all())
    assert bool((lower < 0).all())
    sizes = [float(half.abs().pow(order).sum()) for half in (upper, lower)]
    assert sizes == pytest.approx([0.5, 0.5]), "both halves weigh the same"
    bank = pattern_bank(12, norm)[:, side, :side, :side].double()
    torch.testing.assert_close(bank[0], shape, rtol=1e-6, atol=0)
    torch.testing.assert_close(bank[1], shape.T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(3, 8, 12), (1, 12, 8), (1, 3, 3), (40, 8, 8)])
def test_images_of_other_shapes_work(norm: Norm, shape: tuple[int, ...]) -> None:
    problem = problem_of(norm, torch.arange(4), shape)
    attack = create_attack("square", queries=30)
    out = run_attack(attack, problem.model, problem.x, problem.y, problem.threat)
    with torch.no_grad():
        gained = margin(problem.model(out.x_adv), problem.y)
        clean = margin(problem.model(problem.x), problem.y)
    assert bool((gained > clean).all())
    torch.testing.assert_close(gained, out.margin)


@pytest.mark.parametrize("norm", NORMS)
def test_windows_belong_to_samples_not_to_batches(norm: Norm) -> None:
    ids = torch.tensor([70, 5, 6, 7, 8])
    for query in (11, 201):
        old, new = proposed(problem_of(norm, ids), query)
        for row, sample in enumerate(ids):
            lone_old, lone_new = proposed(problem_of(norm, sample[None]), query)
            torch.testing.assert_close(lone_old[0], old[row], rtol=0, atol=1e-12)
            torch.testing.assert_close(lone_new[0], new[row], rtol=0, atol=1e-12)
        assert len({tuple((n - o).flatten().tolist()) for n, o in zip(new, old, strict=True)}) == 5


def test_restarts_and_queries_draw_anew() -> None:
    problem, runs = problem_of("Linf", torch.zeros(40, dtype=torch.int64)), torch.arange(40)
    starts = Square().init_state(problem, runs).x_t
    assert len({tuple(start.flatten().tolist()) for start in starts}) == 40
    lone = problem_of("Linf", torch.tensor([3]))
    moves = {
        tuple((new - old).flatten().tolist())
        for old, new in (proposed(lone, query, lone.x) for query in range(201, 241))
    }
    assert len(moves) > 30


def test_no_gradient_is_computed_and_every_query_is_one_pass() -> None:
    problem = problem_of("Linf", torch.arange(3))
    out = run_attack(
        Square(queries=17), problem.model, problem.x, problem.y, NormBall("Linf", 1e-6)
    )
    assert out.counter.forward.tolist() == [1 + 1 + 17] * 3  # clean, start, queries
    assert out.counter.backward.tolist() == [0] * 3


@pytest.mark.parametrize("query", [201, 501, 2001])
def test_small_windows_are_written_as_large_ones_are(
    query: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of("Linf", torch.arange(40), (3, 32, 32))
    points = []
    for share in (1.0, 0.0):  # pixel by pixel, and over the whole image
        monkeypatch.setattr(squares, "SMALL_WINDOW", share)
        points.append(proposed(problem, query)[1])
    assert torch.equal(*points)


def test_random_numbers_do_not_depend_on_where_a_block_of_queries_begins() -> None:
    """Rows that joined later are at another query; each draws what it would have drawn alone."""
    problem = problem_of("Linf", torch.arange(6))
    state = begun(problem)
    late = torch.tensor([0, 0, 0, 1, 1, 1])
    seen = {}
    for turn in range(2 * squares.BITS_PER_BLOCK + 3):
        drawn = squares._query_bits(state).tolist()
        for row, bits in enumerate(drawn):
            seen[row, int(state.step[row])] = bits
        state.step += 1 if turn else 1 - late  # three rows begin one query later
    for (row, query), bits in seen.items():
        expected = draw_query_bits(state.key[row : row + 1], torch.tensor([query]), 1)[0, 0]
        assert bits == int(expected)


@pytest.mark.parametrize(("norm", "eps"), thinned([("L2", 0.3), ("Linf", 0.02), ("L1", 3.0)], 3))
@pytest.mark.parametrize("most", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 8))])
def test_sprints_find_what_queries_one_by_one_find(most: int, norm: Norm, eps: float) -> None:
    x, _ = images(7, size=17)  # every pixel counts: no two points have the same loss
    model = small_net(size=17).double()
    x = x.double()
    y, chosen = model(x).argmax(1), create_attack("square", queries=700)
    found = []
    for early in (10_000, 200):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(squares, "SEQUENTIAL_QUERIES", early)
            patch.setattr(square_sprint, "MAX_SPECULATIVE", most)
            patch.setattr(square_sprint, "MAX_WASTE", 0.5)
            found.append(run_attack(chosen, model, x, y, NormBall(norm, eps)))
    assert torch.equal(found[0].fooled, found[1].fooled)
    torch.testing.assert_close(found[0].x_adv, found[1].x_adv, rtol=0, atol=1e-9)
    torch.testing.assert_close(found[0].margin, found[1].margin, rtol=0, atol=1e-9)
    one, many = (int(f.counter.forward.sum()) for f in found)
    assert one == 7 * (700 + 2)
    if most == 1:
        assert many == one
    else:
        assert one < many < 1.6 * one, "some queries are tried twice, and all are counted"


def test_the_batches_do_not_depend_on_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of another size may round in another way."""
    model, (x, _) = small_net(size=17), images(6, size=17)
    y, batch_sizes = model(x).argmax(1), list[list[int]]()
    model.register_forward_pre_hook(lambda _, args: batch_sizes[-1].append(len(args[0])))
    for seed in (0, 1):
        clock = random.Random(seed)
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, lambda clock=clock: 100 * clock.random())
        batch_sizes.append([])
        run_attack(create_attack("square", queries=1200), model, x, y, NormBall("L2", 0.1))
    assert batch_sizes[0] == batch_sizes[1]
    assert len(set(batch_sizes[0])) > 3, "the case must try several queries at once"


def test_sprints_end_where_an_image_is_broken_and_it_leaves() -> None:
    x, _ = images(12, size=17)
    model = small_net(size=17).double()
    x = x.double()
    y, chosen = model(x).argmax(1), create_attack("square", queries=1500)
    out = run_attack(
        chosen, model, x, y, NormBall("Linf", 0.1), options=AttackOptions(stop_when_fooled=True)
    )
    late = out.fooled & (out.counter.forward > 300)
    assert late.any(), "some are broken in a sprint"
    assert not out.fooled.all()
    with torch.no_grad():
        wrong = model(out.x_adv).argmax(1) != y
    assert torch.equal(wrong, out.fooled)
    assert bool((out.counter.forward[out.fooled] < 1500).all())
    assert bool((out.counter.forward[~out.fooled] >= 1502).all())


def test_images_that_come_later_change_nothing() -> None:
    """Small batches are filled up while others are under way; each image goes its own way."""
    threat, attack = NormBall("Linf", 0.09), Square(queries=900)
    model, x = small_net(size=17).double(), images(16, size=17)[0].double()
    y = model(x).argmax(1)
    outs = [
        run_attack(
            attack, model, x, y, threat,
            options=AttackOptions(workers=1, batch_size=n, stop_when_fooled=True),
        )
        for n in (64, 5)
    ]  # fmt: skip
    late = outs[0].fooled & (outs[0].counter.forward > 250)
    assert late.any(), "some leave when others are in sprints"
    assert not outs[0].fooled.all()
    assert torch.equal(outs[0].fooled, outs[1].fooled)
    torch.testing.assert_close(outs[0].x_adv, outs[1].x_adv, rtol=0, atol=1e-9)
    assert bool((outs[1].counter.forward[~outs[1].fooled] >= 902).all())


def test_a_loss_that_is_not_finite_is_told_of_in_a_sprint() -> None:
    class Failing(Linear):
        """Gives no number for bright images once there were 200 queries."""

        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            is_bad = (x[:, 0, 0, 0] > 0.5) & (self.calls > 210)
            return super().forward(x).masked_fill(is_bad[:, None], torch.nan)

    x, y = images(3, size=17)[0].double(), torch.zeros(3, dtype=torch.int64)
    x[:, 0, 0, 0] = torch.tensor([0.0, 1.0, 0.0])
    model = Failing(x[0].numel(), 3).double()
    how = AttackOptions(workers=1)
    out = run_attack(Square(queries=400), model, x, y, NormBall("Linf", 1e-6), options=how)
    assert out.counter.non_finite.tolist() == [False, True, False]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_some_of_the_windows_drawn_ahead(norm: Norm, first: int) -> None:
    x, key = images(4, size=11)[0].double(), torch.arange(4)
    problem = Problem(small_net(), x, key, NormBall(norm, 0.5), SampleRNG(0, "square", key))
    best, bits = problem.random_start(1), draw_query_bits(key, torch.zeros_like(key), 12)
    patches = square_patches.draw_proposals(problem, 3, bits)
    assert len(patches) == 12
    starts = torch.tensor([first, 0, 7, 2])
    points = patches.select_queries(torch.arange(4), starts[:, None] + torch.arange(5)).apply_to(
        problem, best
    )
    whole = patches.apply_to(problem, best)
    for row, start in enumerate(starts.tolist()):
        torch.testing.assert_close(points[row], whole[row, start : start + 5], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["L2", "L1"])
def test_patterns_are_written_alike_whether_windows_are_of_one_size_or_of_two(norm: Norm) -> None:
    key = torch.arange(12)
    side = torch.full((12,), 5)
    bits = draw_query_bits(key, torch.zeros_like(key), 1)[:, 0]
    window, lying = (
        square_windows.window_coordinates(bits, side, torch.Size((12, 3, 16, 16))),
        key % 2,
    )
    alike = squares._window_pattern(norm, window, side, lying)
    mixed = squares._window_pattern(
        norm,
        tuple(torch.cat([w, w[:1]]) for w in window),  # type: ignore[arg-type]
        torch.cat([side, torch.tensor([7])]),
        torch.cat([lying, lying[:1]]),
    )[:12]
    inside = square_windows.window_mask(*window, side)
    assert torch.equal(alike * inside, mixed * inside)
    assert bool((alike * inside).flatten(1).ne(0).any(1).all())


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.05), ("L2", 0.5), ("L1", 4.0)])
def test_small_windows_are_filled_as_large_ones_are(norm: Norm, eps: float) -> None:
    x, key = images(6, size=11)[0].double(), torch.arange(6)
    problem = Problem(small_net(), x, key, NormBall(norm, eps), SampleRNG(0, "square", key))
    best = problem.random_start(1)
    bits = draw_query_bits(key, torch.zeros_like(key), 40)
    patches = square_patches.draw_proposals(problem, 3, bits)
    at_once = patches.apply_to(problem, best)
    meets = square_patches._overlap_mask(bits, splitmix64(bits), 3, x.shape).flatten(2).any(2)
    assert meets.any()
    assert not meets.all()
    for k in range(bits.shape[1]):
        alone = squares._propose_points(problem, best, torch.full_like(key, 3), bits[:, k])
        torch.testing.assert_close(at_once[:, k], alone, rtol=0, atol=1e-9)
