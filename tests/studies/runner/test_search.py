"""A search as real runs: it ends, is taken up where it was, and never looks at test images."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from buttress.results.run import Run
from buttress.results.study_result import SearchResult, read_search_result, search_result_path
from buttress.studies import RunJob
from buttress.studies import jobs as work
from buttress.studies.runner import RunnerOptions, run_search
from buttress.studies.search import (
    SearchBudget,
    SearchSettings,
    SearchSpec,
    list_searches,
    load_search,
)
from buttress.studies.search import run as running_search
from buttress.system.progress import SilentProgress
from buttress.training import train_run

GRID: dict[str, Any] = {
    "base": {"dataset": "digits", "train_limit": 32, "recipe": "quickstart-at",
             "overrides": ["epochs=4", "validation.limit=16"]},
    "axes": {"model": {"vit": {"model": "vit_tiny"}, "wrn": {"model": "wrn_tiny"},
                       "resnet": {"model": "resnet_tiny"}}},
}  # fmt: skip
HALVING = {"rungs": 2, "eta": 2, "tie_factor": 1}


def asked(**grid: Any) -> SearchSettings:
    content = {"name": "small", "question": "which?", "grid": {**GRID, **grid}, "halving": HALVING}
    spec = SearchSpec.parse(content, "test")
    return SearchSettings(spec, "smoke", SearchBudget(), spec.halving_at("smoke"))


def carry(root: Path, what: SearchSettings, *, retry: bool = False) -> SearchResult:
    return run_search(
        what, root, RunnerOptions(workers=1, device="cpu", retry=retry), SilentProgress()
    )


def test_a_search_runs_to_its_ranking_and_reads_no_test_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("images were asked for beside training")

    monkeypatch.setattr(work, "load_dataset", refuse)
    result = carry(tmp_path, asked())
    assert result.is_finished
    assert result.failed_candidates == {}
    assert [len(t.scores) for t in result.candidates] == [2, 2, 1]
    assert result.candidates[0].status == "best"
    assert [rung.candidates for rung in result.rungs] == [3, 2]
    for tried in result.candidates:
        for score in tried.scores:
            said = Run(tmp_path / "runs" / score.run_keys[0]).summary
            assert said["selected_on"] == "val"
            assert (score.robust_accuracy, score.epochs) == (
                said["best_val_robust"],
                said["epochs"],
            )
    file = search_result_path(tmp_path, result.key)
    assert read_search_result(file) == result
    picture = file.with_name("pareto.svg").read_text()
    assert "</svg>" in picture
    again = carry(tmp_path, asked())
    assert again == result
    assert file.with_name("pareto.svg").read_text() == picture


def test_a_search_that_was_stopped_goes_on_and_trains_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = carry(tmp_path / "whole", asked())
    trained: list[str] = []
    real = train_run

    def train_some(spec: Any, *args: Any, **kwargs: Any) -> Run:
        if len(trained) == 4:
            raise KeyboardInterrupt
        trained.append(spec.key())
        return real(spec, *args, **kwargs)

    monkeypatch.setattr(work, "train_run", train_some)
    with pytest.raises(KeyboardInterrupt):  # in the second rung
        carry(tmp_path / "cut", asked())
    (state,) = (tmp_path / "cut").rglob("search.json")
    half = read_search_result(state)
    assert not half.is_finished
    assert len(half.rungs) == 1
    done = list(trained)
    trained.clear()
    rest = carry(tmp_path / "cut", asked())
    assert rest == whole
    assert len(trained) == 1
    assert not set(trained) & set(done)


def test_a_candidate_that_fails_is_said_and_tried_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job: RunJob, **how: Any) -> Run:
        if job.spec.model == "wrn_tiny":
            raise RuntimeError("no memory")
        return complete(job, **how)

    complete = work.complete_run
    monkeypatch.setattr("buttress.studies.runner.queue.complete_run", fail)
    result = carry(tmp_path, asked())
    assert list(result.failed_candidates) == ["model wrn"]
    assert "no memory" in result.failed_candidates["model wrn"]
    assert result.candidates[0].status == "best"
    monkeypatch.setattr("buttress.studies.runner.queue.complete_run", complete)
    assert (
        carry(tmp_path, asked()).failed_candidates == result.failed_candidates
    )  # not tried again by itself
    assert carry(tmp_path, asked(), retry=True).failed_candidates == {}


def test_several_seeds_are_one_candidate(tmp_path: Path) -> None:
    axes = {"model": {"wrn": {"model": "wrn_tiny"}}}
    result = carry(tmp_path, asked(seeds=[0, 1], axes=axes))
    (tried,) = result.candidates
    assert [len(score.run_keys) for score in tried.scores] == [2, 2]
    for score in tried.scores:
        shares = [Run(tmp_path / "runs" / k).summary["best_val_robust"] for k in score.run_keys]
        assert score.robust_accuracy == sum(shares) / 2
        assert score.low <= score.robust_accuracy <= score.high


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searches")


@pytest.mark.parametrize("name", list_searches())
def test_a_shipped_search_runs_at_smoke(name: str, shared: Path) -> None:
    spec = load_search(name)
    what = SearchSettings(spec, "smoke", spec.budget_at("smoke"), spec.halving_at("smoke"))
    result = carry(shared, what)
    assert result.is_finished
    assert result.failed_candidates == {}
    assert all(t.scores for t in result.candidates)


CODE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_search import asked, carry
if __name__ == "__main__":
    carry(Path(sys.argv[1]), asked())
"""


@pytest.mark.slow
def test_a_killed_search_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    whole = carry(tmp_path / "whole", asked())
    script, root = tmp_path / "driver.py", tmp_path / "killed"
    script.write_text(CODE)
    for count in (1, 4):  # in the first rung, and in the second
        command = [sys.executable, str(script), str(root), str(Path(__file__).parent)]
        driver = subprocess.Popen(command)
        deadline = time.monotonic() + 300
        while len(list(root.glob("runs/*/done.json"))) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        driver.kill()
        driver.wait()
    assert len(list(root.glob("runs/*/done.json"))) >= 4
    assert carry(root, asked()) == whole
    assert not list(root.rglob("*.lock"))
    assert running_search.PLOT_FILE in {p.name for p in root.rglob("*.svg")}
