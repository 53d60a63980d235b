"""Clean accuracy and robust accuracy under standard AutoAttack, as RobustBench measures them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from buttress.errors import UserError
from buttress.evaluation.evaluate import EVALUATE_HINTS, evaluate
from buttress.results.core import CLEAN, AccuracyEstimate
from buttress.results.display import format_accuracy
from buttress.results.evaluation import Evaluation
from buttress.results.suite_spec import SuiteSpec
from buttress.system.progress import Progress
from buttress.system.signatures import explain_arguments
from buttress.threats.arguments import DEFAULT_NORM, threat_text
from buttress.threats.core import Threat

if TYPE_CHECKING:
    from buttress.data.convert import DataLike

AUTOATTACK = "autoattack"
CORRUPTIONS = "corruptions"  # what RobustBench calls a threat model too


@dataclass(frozen=True, repr=False)
class BenchmarkResult:
    """Accuracies in [0, 1] with their 95% intervals; ``clean, robust = result`` unpacks them."""

    evaluation: Evaluation  # all per-sample results

    @property
    def clean(self) -> AccuracyEstimate:
        return self.evaluation.estimate(CLEAN)

    @property
    def robust(self) -> AccuracyEstimate:
        """Of AutoAttack alone; queries that cross-check it are not part of the benchmark."""
        return self.evaluation.estimate(AUTOATTACK)

    @property
    def clean_accuracy(self) -> float:
        return self.clean.accuracy

    @property
    def robust_accuracy(self) -> float:
        return self.robust.accuracy

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust the numbers."""
        return self.evaluation.warnings

    def __iter__(self) -> Iterator[float]:
        return iter((self.clean_accuracy, self.robust_accuracy))

    def __repr__(self) -> str:
        record = self.evaluation.records[AUTOATTACK]
        images = f"{len(self.evaluation):,} images of {self.evaluation.dataset}"
        return (
            f"BenchmarkResult(AutoAttack {record.metadata.get('threat')}, {images}: clean accuracy "
            f"{format_accuracy(self.clean)}, robust accuracy {format_accuracy(self.robust)})"
        )

    def _repr_html_(self) -> str:
        return self.evaluation._repr_html_()


@explain_arguments(
    "bt.benchmark(model, dataset='cifar10', threat_model='Linf', n_examples=1000)", EVALUATE_HINTS
)
def benchmark(  # noqa: PLR0913 - the public call
    model: nn.Module,
    dataset: DataLike = "cifar10",
    threat: str | Threat | None = None,
    *,
    threat_model: str | None = None,
    eps: str | float | None = None,
    norm: str | None = None,
    n_examples: int | None = None,
    batch_size: int = 256,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> BenchmarkResult:
    """Clean accuracy and robust accuracy under standard AutoAttack, every query of it.

    Args:
        model: any model from [0, 1] images to logits.
        dataset: a name, whose test images are used, or images in any form that `evaluate` takes.
            RobustBench's 5,000 images of ImageNet are ``imagenet-rb5000``.
        threat: like ``Linf:8/255``; a norm alone has the usual eps of the dataset, Linf if nothing
            is given.
        threat_model: RobustBench's name for ``norm``: Linf or L2.
        eps: in place of ``threat``, with ``norm``.
        norm: Linf, L2 or L1.
        n_examples: only the first images; all if not given.
        batch_size: affects speed and memory, not the per-sample results.
        seed: of the random starts.
        out: folder for the records; finished attacks are cached there.
        progress: where to show progress.
    """
    if threat_model is not None and norm is not None:
        raise UserError("the norm is given once: as `norm` or as `threat_model`, not both")
    if threat_model == CORRUPTIONS:
        raise UserError(
            "corruptions are not attacked: evaluate the model with "
            "bt.evaluate(model, dataset, 'corruptions')"
        )
    text = threat_text(threat, eps, norm or threat_model) or DEFAULT_NORM
    entry = {"name": AUTOATTACK, "attack": AUTOATTACK, "threat": text}
    spec = SuiteSpec.parse({"name": f"{AUTOATTACK}-{text}", "entries": [entry]}, "suite")
    evaluation = evaluate(
        model, dataset, spec, limit=n_examples, batch_size=batch_size, seed=seed, out=out,
        progress=progress,
    )  # fmt: skip
    return BenchmarkResult(evaluation)
