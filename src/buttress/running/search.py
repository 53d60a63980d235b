"""Carries a search out, rung by rung, on the runners of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buttress.progress import Progress
from buttress.records.run import Run
from buttress.records.search import Score, Search, search_file, write_search
from buttress.records.spec import RunSpec
from buttress.running.launch import Launch, ending_on_term, launch
from buttress.study.search import (
    Asked,
    Entrants,
    State,
    draw_search,
    entrants_of,
    halve,
    interval_of,
    most_flops,
    summarise,
)
from buttress.study.work import Work

PICTURE = "pareto.svg"


def carry_search(asked: Asked, root: Path, how: Launch, progress: Progress) -> Search:
    """Trains what is missing; what a search is, is told from its runs.

    Runs are kept by what they are, so that a search that was stopped comes to the same decisions
    from the runs that are there and goes on where it was.
    """
    entrants = entrants_of(asked.spec, asked.scale, asked.budget, asked.halving, asked.seed)
    rungs = Rungs(asked, entrants, root, how, progress)
    most = most_flops(entrants.drawn, asked.halving)
    whole = sum(candidate.flops(1.0) for candidate in entrants.in_budget)
    progress.log(
        f"{len(entrants.drawn)} of {entrants.grid} networks take part; training takes at most "
        f"{most / whole:.0%} of what all {len(entrants.in_budget)} in the budget would in full"
    )

    said: list[str] = []

    def told(state: State) -> None:
        so_far = summarise(asked, entrants, state)
        write_search(root, so_far)
        for note in so_far.notes[len(said) :]:
            progress.log(note)
            said.append(note)

    with ending_on_term():
        state = halve(entrants.drawn, asked.halving, rungs.measure, told)
    found = summarise(asked, entrants, state)
    draw_search(found, search_file(root, found.key).with_name(PICTURE))
    return found


@dataclass
class Rungs:
    """The rungs of a search as runs."""

    asked: Asked
    entrants: Entrants
    root: Path
    how: Launch
    progress: Progress

    def measure(self, rung: int, left: Sequence[int]) -> Mapping[int, Score | str]:
        """Trains the candidates that are left and reads what they reached."""
        share = self.asked.halving.share(rung)
        specs = {place: self.entrants.drawn[place].at(share) for place in left}
        works = [self._work(spec) for group in specs.values() for spec in group]
        epochs = sorted({spec.recipe.epochs for group in specs.values() for spec in group})
        length = " to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))
        place = f"rung {rung + 1} of {self.asked.halving.rungs}"
        self.progress.log(f"{place}: {len(left)} candidates, epochs: {length}")
        failures = launch(works, self.how, self.progress)
        why = {failure.work.key: failure.message for failure in failures}
        return {place: self._score(group, why) for place, group in specs.items()}

    def _work(self, spec: RunSpec) -> Work:
        return Work(spec, self.root / "runs" / spec.key())

    def _score(self, specs: Sequence[RunSpec], why: Mapping[str, str]) -> Score | str:
        """The mean over seeds; a candidate that lacks one has failed."""
        for spec in specs:
            if spec.key() in why:
                return f"{spec.key()}: {why[spec.key()]}"
        said = [Run(self.root / "runs" / spec.key()).summary for spec in specs]
        shares = [float(s["best_val_robust"]) for s in said]
        images = int(said[0]["val_images"])
        low, high = interval_of(shares, images)
        return Score(
            epochs=specs[0].recipe.epochs, value=sum(shares) / len(shares), low=low, high=high,
            clean=sum(float(s["best_val_clean"]) for s in said) / len(said), images=images,
            runs=tuple(spec.key() for spec in specs),
        )  # fmt: skip
