"""Transferability of adversarial examples between runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from buttress.analysis.core import ANALYSES, AnalysisResult, Count
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.stability import predict_classes
from buttress.analysis.subject import AnalysisSubject, RunGroup
from buttress.analysis.uncertainty import SampleUnits, StoredSamples
from buttress.attacks.core import Attack, create_attack
from buttress.data import Dataset
from buttress.engine.processes import map_in_processes
from buttress.engine.run import run_attack
from buttress.models.cost import PassCount
from buttress.models.eval_mode import model_device
from buttress.statistics import wilson_interval
from buttress.threats.core import Threat

IMAGES_PER_ITEM = 32  # attacked together; these items are split over the processes
TransferMatrix = tuple[tuple[float, ...], ...]


class TransferabilityResult(AnalysisResult):
    """Success rate of adversarial examples from one run (rows) on another (columns)."""

    attack: str
    args: dict[str, Any]
    threat: str
    images: int
    runs: tuple[str, ...]
    num_correct: tuple[int, ...]  # images that each run classifies correctly
    attack_success_rate: TransferMatrix  # [made on][scored on]: of the second's correct images
    low: TransferMatrix  # ends of the 95% intervals
    high: TransferMatrix
    likely_gradient_masking: tuple[str, ...]  # others' examples fool it more than its own

    @property
    def mean_transfer_rate(self) -> tuple[float, ...]:
        """For each source the mean over the other runs."""
        n = len(self.runs)
        return tuple(
            sum(v for j, v in enumerate(row) if j != i) / (n - 1)
            for i, row in enumerate(self.attack_success_rate)
        )

    @property
    def mean_received_rate(self) -> tuple[float, ...]:
        """For each target the mean over examples of the other runs."""
        n = len(self.runs)
        columns = list(zip(*self.attack_success_rate, strict=True))
        return tuple(
            sum(v for i, v in enumerate(c) if i != j) / (n - 1) for j, c in enumerate(columns)
        )

    @staticmethod
    def plot(results: Mapping[str, TransferabilityResult], figure: Figure) -> None:
        """Plot a matrix per result; the diagonal is the white-box attack."""
        most = max(len(r.runs) for r in results.values())
        figure.set_size_inches((3.5 + 0.75 * most) * len(results), 2.5 + 0.55 * most)
        for axes, result in zip(
            figure.subplots(1, len(results), squeeze=False)[0], results.values(), strict=True
        ):
            _draw_matrix(result, axes)

    def summary(self) -> str:
        """Summarize white-box and transfer success, the best source, and gradient masking."""
        n = len(self.runs)
        white_box_rate = sum(self.attack_success_rate[i][i] for i in range(n)) / n
        transfer_rate = sum(self.mean_transfer_rate) / n
        source = max(range(n), key=lambda i: self.mean_transfer_rate[i])
        target = max(range(n), key=lambda j: self.mean_received_rate[j])
        masked = ", ".join(self.likely_gradient_masking)
        tail = (
            f" Examples of others fool {masked} more than a white-box attack does, which indicates "
            "gradient masking: its robust accuracy is overestimated."
            if masked
            else ""
        )
        return (
            f"{self.attack} in {self.threat} has a white-box success rate of "
            f"{white_box_rate:.1%} on correctly classified images, and a transfer success rate of "
            f"{transfer_rate:.1%} between the {n} runs ({self.images} images). Adversarial "
            f"examples from {self.runs[source]} transfer best "
            f"({self.mean_transfer_rate[source]:.1%}), and {self.runs[target]} is fooled most "
            f"by those of others ({self.mean_received_rate[target]:.1%}).{tail}"
        )


def _draw_matrix(result: TransferabilityResult, axes: Axes) -> None:
    axes.imshow(result.attack_success_rate, vmin=0, vmax=1, cmap="Reds", aspect="auto")
    for i, row in enumerate(result.attack_success_rate):
        for j, value in enumerate(row):
            axes.text(
                j, i, f"{value:.0%}", ha="center", va="center", fontsize="small",
                color="white" if value > 0.6 else "black", weight="bold" if i == j else "normal",
            )  # fmt: skip
    ticks = range(len(result.runs))
    axes.set_xticks(ticks, list(result.runs), rotation=40, ha="right", fontsize="small")
    axes.set_yticks(ticks, list(result.runs), fontsize="small")
    axes.set(xlabel="scored on", ylabel="made on")
    axes.set_title(f"fooled by {result.attack}, {result.threat}", fontsize="small")


def transferability_cost(
    group: RunGroup, *, attack: str, args: Mapping[str, Any] | None, limit: int, **_: Any
) -> Iterator[tuple[AnalysisSubject, PassCount]]:
    """Cost: the attack on each model, then forward passes of clean images and all examples."""
    attack_object = create_attack(attack, **(args or {}))
    for _label, subject in group.subjects():
        images = min(limit, len(subject.data))
        yield subject, attack_passes(attack_object, subject.scope, images, looks=1 + len(group))


@ANALYSES.register(
    "transferability",
    paper="arXiv:1605.07277",
    tags=("attack",),
    cost=transferability_cost,
    example_args={"limit": 4, "args": {"steps": 2}},
    subject="group",
)
def transferability(
    group: RunGroup,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    threat: str = "",
    limit: Count = 256,
) -> TransferabilityResult:
    """Fraction of a run's correct images that adversarial examples from another run fool.

    All runs use the same images and threat model, by default that of the first run. An attack
    continues after its source model is fooled, to the point with the largest margin, which
    transfers better.
    """
    first = group.subject(0)
    common_threat = Threat.parse(threat) if threat else first.threat
    return measure_transfer(
        group, first.first_images(limit), common_threat, attack, dict(args or {})
    )


def measure_transfer(
    group: RunGroup, data: Dataset, threat: Threat, attack: str, args: dict[str, Any]
) -> TransferabilityResult:
    """Attack each run, then evaluate all examples on each run; one model at a time."""
    x, y, ids = data.take(torch.arange(len(data)))
    attack_object = create_attack(attack, **args)
    adversarial_sets: list[Tensor] = []
    task = group.progress.add_task(f"transferability under {attack}", 2 * len(group))
    for label, subject in group.subjects():
        adversarial_sets.append(adversarial_examples(attack_object, subject.model, data, threat))
        task.advance(1, note=f"examples made on {label}")
    is_correct: list[Tensor] = []
    is_fooled: list[list[Tensor]] = []  # [scored on][made on]
    for label, subject in group.subjects():
        is_correct.append(predict_classes(subject.model, x) == y)
        is_fooled.append([predict_classes(subject.model, x_adv) != y for x_adv in adversarial_sets])
        task.advance(1, note=f"scored on {label}")
    task.close()
    rates, low, high = success_rates(is_correct, is_fooled)
    return TransferabilityResult(
        attack=attack,
        args=args,
        threat=str(threat),
        images=len(x),
        runs=group.labels,
        num_correct=tuple(int(r.sum()) for r in is_correct),
        attack_success_rate=rates,
        low=low,
        high=high,
        likely_gradient_masking=likely_masked_runs(group.labels, low, high),
        samples=_transfer_samples(is_correct, is_fooled, SampleUnits(ids)),
    )


def adversarial_examples(attack: Attack, model: nn.Module, data: Dataset, threat: Threat) -> Tensor:
    """(N, C, H, W) adversarial examples, with one process per core."""

    def attack_images(rows: Tensor) -> Tensor:
        x, y, ids = data.take(rows)
        return run_attack(attack, model, x, y, threat, ids=ids).x_adv.cpu()

    items = torch.arange(len(data)).split(IMAGES_PER_ITEM)
    return torch.cat(map_in_processes(attack_images, items, model_device(model)))


def _transfer_samples(
    is_correct: Sequence[Tensor], is_fooled: Sequence[Sequence[Tensor]], units: SampleUnits
) -> dict[str, StoredSamples]:
    """Whether each image is fooled; nan where the scored run is wrong without an attack."""
    return {
        f"attack_success_rate[{i}][{j}]": units.store(flags[i].double().where(mine, torch.nan))
        for j, (mine, flags) in enumerate(zip(is_correct, is_fooled, strict=True))
        for i in range(len(flags))
    }


def success_rates(
    is_correct: Sequence[Tensor], is_fooled: Sequence[Sequence[Tensor]]
) -> tuple[TransferMatrix, TransferMatrix, TransferMatrix]:
    """[made on][scored on]: the success rate on correct images, with its interval.

    ``is_fooled`` is [scored on][made on]. A model without a correct image cannot be fooled: 0,
    with an interval of everything.
    """
    counts = [
        [
            (int((flags[i] & mine).sum()), int(mine.sum()))
            for mine, flags in zip(is_correct, is_fooled, strict=True)
        ]
        for i in range(len(is_correct))
    ]
    spans = [[wilson_interval(k, n) for k, n in row] for row in counts]
    return (
        tuple(tuple(k / max(n, 1) for k, n in row) for row in counts),
        tuple(tuple(s.low for s in row) for row in spans),
        tuple(tuple(s.high for s in row) for row in spans),
    )


def likely_masked_runs(
    labels: Sequence[str], low: TransferMatrix, high: TransferMatrix
) -> tuple[str, ...]:
    """Runs that another run's examples fool significantly more than their own."""
    n = range(len(labels))
    return tuple(labels[j] for j in n if any(low[i][j] > high[j][j] for i in n if i != j))
