"""Run a search, rung by rung."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.results.study_result import (
    RungScore,
    SearchResult,
    search_result_path,
    write_search_result,
)
from buttress.studies.jobs import RunJob
from buttress.studies.runner.run import RunnerOptions, run_shard
from buttress.studies.search import (
    CandidatePool,
    HalvingState,
    SearchSettings,
    build_candidates,
    max_flops,
    save_search_plot,
    score_interval,
    successive_halving,
    summarize_search,
)
from buttress.system.interrupt import interrupt_on_sigterm
from buttress.system.progress import Progress

PLOT_FILE = "pareto.svg"


def run_search(
    settings: SearchSettings, root: Path, options: RunnerOptions, progress: Progress
) -> SearchResult:
    """Run a search; finished runs are reused.

    Runs are kept by what they are, so that a search that was stopped comes to the same decisions
    from the runs that are there and resumes where it stopped.
    """
    pool = build_candidates(
        settings.spec, settings.scale, settings.budget, settings.halving, settings.seed
    )
    rungs = RungRunner(settings, pool, root, options, progress)
    max_train_flops = max_flops(pool.sampled, settings.halving)
    full_flops = sum(candidate.flops(1.0) for candidate in pool.in_budget)
    progress.log(
        f"sampled {len(pool.sampled)} of {pool.grid_size} models; training costs at most "
        f"{max_train_flops / full_flops:.0%} of training all {len(pool.in_budget)} models in the "
        "budget in full"
    )

    logged_warnings: list[str] = []

    def on_rung(state: HalvingState) -> None:
        so_far = summarize_search(settings, pool, state)
        write_search_result(root, so_far)
        for note in so_far.notes[len(logged_warnings) :]:
            progress.log(note)
            logged_warnings.append(note)

    with interrupt_on_sigterm():
        state = successive_halving(pool.sampled, settings.halving, rungs.score_rung, on_rung)
    result = summarize_search(settings, pool, state)
    save_search_plot(result, search_result_path(root, result.key).with_name(PLOT_FILE))
    return result


@dataclass
class RungRunner:
    """Trains the candidates of a rung."""

    settings: SearchSettings
    pool: CandidatePool
    root: Path
    options: RunnerOptions
    progress: Progress

    def score_rung(self, rung: int, remaining: Sequence[int]) -> Mapping[int, RungScore | str]:
        """Train the remaining candidates and return their scores."""
        epoch_fraction = self.settings.halving.epoch_fraction(rung)
        specs = {index: self.pool.sampled[index].specs_for(epoch_fraction) for index in remaining}
        jobs = [self._job(spec) for group in specs.values() for spec in group]
        epochs = sorted({spec.recipe.epochs for group in specs.values() for spec in group})
        epochs_text = " to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))
        index = f"rung {rung + 1} of {self.settings.halving.rungs}"
        self.progress.log(f"{index}: {len(remaining)} candidates, epochs: {epochs_text}")
        failures = run_shard(jobs, self.options, self.progress)
        failure_messages = {failure.job.key: failure.message for failure in failures}
        return {index: self._score(group, failure_messages) for index, group in specs.items()}

    def _job(self, spec: RunSpec) -> RunJob:
        return RunJob(spec, self.root / "runs" / spec.key())

    def _score(
        self, specs: Sequence[RunSpec], failure_messages: Mapping[str, str]
    ) -> RungScore | str:
        """Mean over seeds; a candidate with a failed seed has failed."""
        for spec in specs:
            if spec.key() in failure_messages:
                return f"{spec.key()}: {failure_messages[spec.key()]}"
        summaries = [Run(self.root / "runs" / spec.key()).summary for spec in specs]
        accuracies = [float(s["best_val_robust"]) for s in summaries]
        images = int(summaries[0]["val_images"])
        low, high = score_interval(accuracies, images)
        return RungScore(
            epochs=specs[0].recipe.epochs,
            robust_accuracy=sum(accuracies) / len(accuracies),
            low=low,
            high=high,
            clean_accuracy=sum(float(s["best_val_clean"]) for s in summaries) / len(summaries),
            images=images,
            run_keys=tuple(spec.key() for spec in specs),
        )
