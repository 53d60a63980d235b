"""Samples of figures: saved, found by path and drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from buttress.analysis.uncertainty import (
    FORMULA,
    WEIGHTS_ONLY,
    SampleUnits,
    figure_samples,
    resolve_path,
)

RESULT = {"blocks": [{"name": "stem", "ratio": 2.0}, {"name": "logits", "ratio": 5.0}], "size": 7}


def record(samples: dict[str, Any], *notes: Any) -> dict[str, Any]:
    stored = {path: figure.model_dump(mode="json") for path, figure in samples.items()}
    return {
        "result": {**RESULT, "samples": stored},
        "uncertainty": [note.model_dump(mode="json") for note in notes],
    }


def test_a_figure_is_found_by_name_and_by_position_and_is_drawn_again() -> None:
    units = SampleUnits([30, 10, 20])
    saved = record({"blocks[1].ratio": units.store([3.0, 5.0, 7.0])})
    for path in ("blocks.logits.ratio", "blocks[1].ratio", "blocks[-1].ratio"):
        samples = figure_samples(saved, path)
        assert samples.varies_by == "image"
        assert samples.value == pytest.approx(5.0)
        # in the order of the ids, so that the same images of two records meet
        assert samples.redraw(np.eye(3)).tolist() == [5.0, 7.0, 3.0]
    with pytest.raises(LookupError, match="no key 'head'"):
        figure_samples(saved, "blocks.head.ratio")
    assert resolve_path(RESULT, "size") == ("size",)


def test_figures_of_the_same_images_are_resampled_together() -> None:
    one, other = (SampleUnits(ids).store([1.0, 2.0]) for ids in ([0, 1], [1, 0]))
    assert one.unit_set == other.unit_set != SampleUnits([0, 2]).store([1.0, 2.0]).unit_set


def test_an_image_that_is_left_out_does_not_count() -> None:
    samples = SampleUnits([0, 1, 2]).store([1.0, np.nan, 3.0]).load()
    assert samples.value == pytest.approx(2.0)
    assert samples.redraw(np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])).tolist() == [3.0, 0.0]


def test_a_gap_and_a_slope_are_functions_of_means() -> None:
    units = SampleUnits([0, 1], "draw")
    gap = units.store([4.0, 6.0], [3.0, 5.0], statistic="relative_gap").load()
    assert gap.value == pytest.approx(20.0)
    assert gap.redraw(np.array([[1.0, 0.0]])).tolist() == [25.0]
    shortfall = units.store([4.0, 4.0], [5.0, 5.0], statistic="relative_shortfall").load()
    assert shortfall.value == pytest.approx(20.0)
    terms = [[2.0, 2.0], [4.0, 4.0], [8.0, 8.0]]
    slope = units.store(*terms, statistic="log_log_slope", grid=[1, 4, 16]).load()
    assert slope.value == pytest.approx(0.5)


def test_a_figure_without_samples_says_why() -> None:
    exact = FORMULA.model_copy(update={"pattern": "blocks*"})
    saved = record({}, exact, WEIGHTS_ONLY)
    assert figure_samples(saved, "blocks.stem.ratio").varies_by == "exact"
    weights = figure_samples(saved, "size")
    assert (weights.varies_by, weights.values) == ("seed", None)
    assert "seeds only" in weights.reason
    with pytest.raises(ValueError, match="seeds only"):
        weights.redraw(np.ones((1, 1)))
    assert figure_samples(record({}), "size").varies_by == "none"


def test_the_part_of_a_run_in_a_record_of_several() -> None:
    saved = {
        "result": {
            "by_run": {"r1.a": {"judges": {"vit": {"top1": 0.5}}}},
            "samples": {
                "by_run.r1.a.judges.vit.top1": SampleUnits([0, 1]).store([0.0, 1.0]).model_dump()
            },
        }
    }
    assert figure_samples(saved, "judges.vit.top1", run="r1.a").value == 0.5
