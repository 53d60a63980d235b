"""Order of several models by sparsity, for each choice of the largest weight."""

from __future__ import annotations

from collections.abc import Mapping

from buttress.analysis.core import ANALYSES, AnalysisResult, analyze
from buttress.analysis.figures import Figure
from buttress.analysis.sparsity import LARGEST_KINDS, SparsityResult
from buttress.analysis.subject import RunGroup
from buttress.analysis.uncertainty import WEIGHTS_ONLY
from buttress.config import Spec
from buttress.system.progress import track


class RunSparsity(Spec):
    """The sparsity of one run for each choice of the largest weight."""

    label: str
    by_largest: dict[str, float]


class SparsityOrderResult(AnalysisResult):
    """Sparsity of all runs, and whether their order depends on the choice of the largest weight."""

    by_run: dict[str, RunSparsity]  # by the name of the run's folder

    @property
    def order_changes(self) -> bool:
        return len({tuple(order) for order in self.orders.values()}) > 1

    @property
    def orders(self) -> dict[str, list[str]]:
        """Labels from the sparsest on, for each choice."""
        runs = self.by_run.values()
        return {
            kind: [r.label for r in sorted(runs, key=lambda r: -r.by_largest[kind])]
            for kind in LARGEST_KINDS
        }

    def summary(self) -> str:
        """Say whether the choice of the largest weight changes the order of the models."""
        if not self.order_changes:
            return "The order by sparsity is the same for every choice of `largest`."
        orders = "; ".join(f"by {k}: {' > '.join(order)}" for k, order in self.orders.items())
        return f"The order by sparsity depends on the choice of `largest`: {orders}."

    @staticmethod
    def plot(results: Mapping[str, SparsityOrderResult], figure: Figure) -> None:
        """A line per run through its sparsity for each choice."""
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, result in zip(panels, results.values(), strict=True):
            for run in result.by_run.values():
                values = [run.by_largest[kind] for kind in LARGEST_KINDS]
                axes.plot(LARGEST_KINDS, values, marker="o", label=run.label)
            axes.set(xlabel="largest weight", ylabel="share of weights near zero")
            axes.legend(fontsize="x-small")


@ANALYSES.register(
    "sparsity_order",
    paper="arXiv:2209.14105",
    tags=("weights",),
    cost=lambda group: (),  # it reads weights only
    subject="group",
    reads_records=True,
    uncertainty=(WEIGHTS_ONLY,),
)
def sparsity_order(group: RunGroup) -> SparsityOrderResult:
    """Whether the order of models by sparsity depends on which largest weight is taken.

    A few outliers decide the largest weight of a model, so the published measure may rank models
    by them. The sparsity of each run is computed where it is not saved.
    """
    by_run, runs = {}, list(zip(group.labels, group.runs, strict=True))
    for label, run in track(group.progress, "sparsity of runs", runs, lambda run: run[0]):
        result = analyze("sparsity", run, progress=group.progress)
        assert isinstance(result, SparsityResult)
        by_run[run.path.name] = RunSparsity(label=label, by_largest=result.by_largest)
    return SparsityOrderResult(by_run=by_run)
