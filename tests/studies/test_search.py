"""Searches: the planted best is found for a part of the cost, and chance is not taken for skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buttress.errors import UserError
from buttress.models.cost import ModelCost
from buttress.results.study_result import RungScore
from buttress.statistics import wilson_interval
from buttress.studies import Scale
from buttress.studies.search import (
    Candidate,
    CandidatePool,
    HalvingSpec,
    HalvingState,
    SearchBudget,
    SearchSettings,
    SearchSpec,
    build_candidates,
    list_searches,
    load_search,
    max_flops,
    save_search_plot,
    score_interval,
    successive_halving,
    summarize_search,
)
from buttress.studies.search.halving import RungDecision, prune

SLOW = pytest.mark.slow  # many networks are built, on paper
GRID: dict[str, Any] = {
    "base": {"dataset": "digits", "train_limit": 32, "recipe": "quickstart-at",
             "model": "wrn_d{d1}_{d2}_{d3}_w1_1_1",
             "overrides": ["epochs=9", "validation.limit=50"]},
    "axes": {"d1": [1, 2, 3], "d2": [1, 2, 3], "d3": [1, 2, 3]},
}  # fmt: skip


def made(grid: Mapping[str, Any] = GRID, **rest: Any) -> SearchSpec:
    content = {"name": "planted", "question": "where do blocks help?", "grid": grid, **rest}
    return SearchSpec.parse(content, "test")


def entrants(
    search: SearchSpec | None = None,
    seed: int = 0,
    halving: HalvingSpec | None = None,
    **budget: float,
) -> CandidatePool:
    return build_candidates(
        search or made(), "smoke", SearchBudget(**budget), halving or HalvingSpec(), seed
    )


class Planted:
    """Stands for training: the longer it is, the closer to the truth it comes.

    The truth is the last-stage rule: a block more helps in the first two stages and hurts in the
    last. Small networks learn faster, so that short trainings mislead.
    """

    def __init__(self, candidates: Sequence[Candidate], halving: HalvingSpec, images: int) -> None:
        self.candidates, self.halving, self.images = candidates, halving, images
        self.asked: list[list[int]] = []

    def truth(self, place: int) -> float:
        d1, d2, d3 = (int(label) for label in self.candidates[place].labels.values())
        return 0.40 + 0.03 * d1 + 0.02 * d2 - 0.05 * d3

    def __call__(self, rung: int, left: Sequence[int]) -> dict[int, RungScore | str]:
        self.asked.append(list(left))
        share = self.halving.epoch_fraction(rung)
        generator, result = np.random.default_rng(rung), {}
        for place in left:
            blocks = sum(int(label) for label in self.candidates[place].labels.values())
            seen = self.truth(place) - 0.01 * (1 - share) * blocks
            hits = int(generator.binomial(self.images, seen))
            result[place] = score(hits / self.images, self.images)
        return dict(result)


def score(value: float, images: int = 1000, clean: float = 0.9) -> RungScore:
    low, high = wilson_interval(value * images, images)
    return RungScore(
        epochs=1,
        robust_accuracy=value,
        low=low,
        high=high,
        clean_accuracy=clean,
        images=images,
        run_keys=("r",),
    )


def test_the_last_stage_rule_is_found_for_a_quarter_of_the_cost() -> None:
    halving = HalvingSpec(rungs=4, eta=3)
    longer = {"train_limit": None, "overrides": ["epochs=54", "validation.limit=50"]}
    pool = entrants(made({**GRID, "base": {**GRID["base"], **longer}}), halving=halving)
    planted = Planted(pool.sampled, halving, images=10_000)
    asked = SearchSettings(made(), "smoke", SearchBudget(), halving)
    result = summarize_search(asked, pool, successive_halving(pool.sampled, halving, planted))
    assert result.is_finished
    best = result.candidates[0]
    assert (best.status, best.labels) == ("best", {"d1": "3", "d2": "3", "d3": "1"})
    last = [o for o in result.axis_values if o.axis == "d3"]
    assert [o.label for o in last] == ["1", "2", "3"]
    assert [o.fully_trained for o in last][1:] == [
        0,
        0,
    ]  # all that were trained in full have one block
    first = [o.first_rung_accuracy or 0 for o in last]
    assert first == sorted(first, reverse=True)
    assert result.training_flops < result.full_training_flops / 4
    assert result.training_flops <= max_flops(pool.sampled, halving)


def test_chance_keeps_more_and_no_more_than_there_are_places() -> None:
    halving = HalvingSpec(rungs=3, eta=3, tie_factor=1.5)
    result = entrants(halving=halving)
    few = Planted(result.sampled, halving, images=50)  # nobody can be told apart
    state = successive_halving(result.sampled, halving, few)
    assert [len(left) for left in few.asked] == [27, 14, 5]  # 9 and 3, and half as many again
    assert [rung.target_survivors for rung in state.rungs] == [9, 3, 5]
    assert sum(status == "pruned, tied" for status in state.statuses.values()) == sum(
        rung.pruned_within_interval for rung in state.rungs
    )
    many = Planted(result.sampled, halving, images=10_000_000)
    successive_halving(result.sampled, halving, many)
    assert [len(left) for left in many.asked] == [27, 9, 3]


def test_the_cut_by_hand() -> None:
    far = {0: score(0.80), 1: score(0.70), 2: score(0.69), 3: score(0.68), 4: score(0.30)}
    assert prune(far, num_kept=2, max_keep=3) == RungDecision(
        kept=(0, 1, 2), pruned_ties=(3,), pruned=(4,)
    )
    assert prune(far, num_kept=2, max_keep=2) == RungDecision(
        kept=(0, 1), pruned_ties=(2, 3), pruned=(4,)
    )
    assert prune(far, num_kept=1, max_keep=5) == RungDecision(
        kept=(0,), pruned_ties=(), pruned=(1, 2, 3, 4)
    )
    assert prune(far, num_kept=9, max_keep=9).kept == (0, 1, 2, 3, 4)
    equal = {0: score(0.5, clean=0.8), 1: score(0.5, clean=0.9)}
    assert prune(equal, num_kept=1, max_keep=1).kept == (1,)


def test_an_interval_covers_images_and_seeds() -> None:
    assert score_interval([0.6], 200) == wilson_interval(120, 200)
    agreeing, apart = score_interval([0.6, 0.6, 0.6], 200), score_interval([0.5, 0.6, 0.7], 200)
    assert agreeing == pytest.approx(wilson_interval(120, 200))
    assert apart.low < agreeing.low < 0.6 < agreeing.high < apart.high
    assert score_interval([0.0, 1.0], 10) == (0.0, 1.0)


def test_failures_are_kept_apart_and_a_search_without_survivors_ends() -> None:
    halving = HalvingSpec(rungs=2, eta=3)
    pool = entrants(halving=halving)
    seen: list[HalvingState] = []

    def some_fail(rung: int, left: Sequence[int]) -> dict[int, RungScore | str]:
        return {i: "the loss is not finite" if i < 5 else score(0.5 + i / 100) for i in left}

    state = successive_halving(pool.sampled, halving, some_fail, seen.append)
    assert [i for i, status in state.statuses.items() if status == "failed"] == [0, 1, 2, 3, 4]
    assert state.statuses[26] == "best"
    assert len(seen) == 3  # before the first rung, and after each
    state = successive_halving(pool.sampled, halving, lambda rung, left: dict.fromkeys(left, "no"))
    assert state.is_finished
    assert set(state.statuses.values()) == {"failed"}
    asked = SearchSettings(made(), "smoke", SearchBudget(), halving)
    result = summarize_search(asked, pool, state)
    assert len(result.failed_candidates) == 27
    assert [front.ranks for front in result.fronts] == [(), ()]


def test_a_rung_at_guessing_level_is_said() -> None:
    halving = HalvingSpec(rungs=2, eta=3)
    pool = entrants(halving=halving)
    asked = SearchSettings(made(), "smoke", SearchBudget(), halving)

    def late(rung: int, left: Sequence[int]) -> dict[int, RungScore | str]:
        lucky = {0: 0.3} if rung == 0 else {}
        return {i: score(lucky.get(i, (0.1, 0.5)[rung] + i / 10_000), images=200) for i in left}

    result = summarize_search(asked, pool, successive_halving(pool.sampled, halving, late))
    (note,) = result.notes
    assert "rung 1: fewer than 9 candidates significantly above chance level (10%)" in note
    nobody = summarize_search(
        asked, pool,
        successive_halving(pool.sampled, halving, lambda _, left: {i: score(0.05) for i in left}),
    )  # fmt: skip
    assert "rung 2: no candidate significantly above chance level" in nobody.notes[1]


def test_a_search_of_many_rungs_is_drawn(tmp_path: Path) -> None:
    halving = HalvingSpec(rungs=6, eta=1.5)
    result = entrants(halving=halving)
    state = successive_halving(
        result.sampled, halving, Planted(result.sampled, halving, images=500)
    )
    asked = SearchSettings(made(), "smoke", SearchBudget(macs=1e9), halving)
    save_search_plot(summarize_search(asked, result, state), tmp_path / "many.svg")
    assert "</svg>" in (tmp_path / "many.svg").read_text()


def test_the_budget_and_the_draw_decide_who_takes_part() -> None:
    everyone = entrants()
    assert (everyone.grid_size, len(everyone.in_budget), len(everyone.sampled)) == (27, 27, 27)
    costs = sorted(c.cost.parameters for c in everyone.sampled)
    small = entrants(parameters=float(costs[8]))
    assert [c.cost.parameters <= costs[8] for c in small.sampled] == [True] * 9
    both = entrants(parameters=float(costs[8]), macs=1.0 + min(c.cost.macs for c in small.sampled))
    assert len(both.sampled) < len(small.sampled)
    few = HalvingSpec(max_candidates=7)
    drawn = [c.labels for c in entrants(halving=few).sampled]
    assert len(drawn) == 7
    assert drawn == [c.labels for c in entrants(halving=few).sampled]
    assert drawn != [c.labels for c in entrants(halving=few, seed=1).sampled]
    assert {c.specs[0].seed for c in entrants(halving=few, seed=1).sampled} == {1}
    with pytest.raises(
        UserError, match=r"none of the 27 models fits the budget \(parameters <= 10\).*smallest"
    ):
        entrants(parameters=10.0)


def test_arguments_of_a_model_count_in_its_cost() -> None:
    axes = {"patch": {"4": {"model_args": {"patch": 4}}, "8": {"model_args": {"patch": 8}}}}
    grid = {"base": {**GRID["base"], "model": "xcit_tiny"}, "axes": axes}
    costs = [candidate.cost for candidate in entrants(made(grid)).sampled]
    assert costs[0].macs > costs[1].macs


def test_a_rung_is_a_short_run_and_the_last_is_the_run_of_any_study() -> None:
    halving = HalvingSpec(rungs=3, eta=3)
    candidate = entrants(halving=halving).sampled[0]
    runs = [candidate.specs_for(halving.epoch_fraction(rung))[0] for rung in range(3)]
    assert [run.recipe.epochs for run in runs] == [1, 3, 9]
    assert runs[2].key() == candidate.specs[0].key()
    assert len({run.key() for run in runs}) == 3
    assert isinstance(candidate.cost, ModelCost)


WRONG: dict[str, dict[str, Any]] = {
    "has no threat": {"recipe": "quickstart-standard"},
    "select_on": {"overrides": ["epochs=9", "select_on=test"]},
    "fewer rungs": {"overrides": ["epochs=2"]},
    "unknown model": {"model": "no_such_net"},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_searched_is_refused_before_the_first_run(words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        entrants(made({**GRID, "base": {**GRID["base"], **WRONG[words]}}))
    assert "study" not in str(raised.value)


def test_candidates_must_sit_the_same_exam() -> None:
    axes = {"eps": {"small": {"overrides": ["threat=Linf:0.03"]}, "large": {}}}
    base = {**GRID["base"], "model": "vit_tiny"}
    with pytest.raises(UserError, match="same images under the same attack"):
        entrants(made({"base": base, "axes": axes}))


def test_a_search_measures_nothing_else() -> None:
    with pytest.raises(UserError, match=r"does not support `suites`; evaluate"):
        made({**GRID, "suites": ["quickstart"]}).at_scale("smoke")
    with pytest.raises(UserError, match=r"budget: .*parametres"):
        made(budget={"parametres": 1}).budget_at("smoke")
    with pytest.raises(UserError, match="eta"):
        made(halving={"eta": 1}).halving_at("smoke")


def test_another_budget_is_another_search() -> None:
    keys = {
        SearchSettings(made(), "smoke", budget, halving, seed).key
        for budget in (SearchBudget(), SearchBudget(macs=1e6))
        for halving in (HalvingSpec(), HalvingSpec(rungs=2))
        for seed in (0, 1)
    }
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param(name, scale, marks=() if scale == "smoke" else SLOW)
        for name in list_searches()
        for scale in load_search(name).scales
    ],
)
def test_a_shipped_search_is_whole_at_every_scale(name: str, scale: Scale) -> None:
    search = load_search(name)
    halving = search.halving_at(scale)
    result = build_candidates(search, scale, search.budget_at(scale), halving, 0)
    assert len(result.sampled) >= 4
    if scale != "smoke":
        whole = sum(candidate.flops(1.0) for candidate in result.in_budget)
        assert max_flops(result.sampled, halving) < 0.8 * whole
