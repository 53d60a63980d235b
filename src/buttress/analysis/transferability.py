"""Whether examples made on one network fool another, and which networks they fool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.stability import predictions
from buttress.analysis.subject import Group, Subject
from buttress.attacks.call import How, create_attack, run_attack
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.spec import Spec
from buttress.statistics import wilson
from buttress.threat import Threat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH = 128
Rows = tuple[tuple[float, ...], ...]


class Transferability(Spec):
    """How often examples made on one run (rows) fool another (columns)."""

    attack: str
    args: dict[str, Any]
    threat: str
    images: int
    runs: tuple[str, ...]
    right: tuple[int, ...]  # of the images, those that each run has right when they are clean
    fooled: Rows  # [made on][scored on]: share of the images that the second had right
    low: Rows  # ends of the 95% intervals
    high: Rows
    masked: tuple[str, ...]  # runs that examples of another fool surely more than their own

    @property
    def elsewhere(self) -> tuple[float, ...]:
        """For each source the mean over the other runs."""
        n = len(self.runs)
        return tuple(
            sum(v for j, v in enumerate(row) if j != i) / (n - 1)
            for i, row in enumerate(self.fooled)
        )

    @property
    def from_elsewhere(self) -> tuple[float, ...]:
        """For each target the mean over examples of the other runs."""
        n = len(self.runs)
        columns = list(zip(*self.fooled, strict=True))
        return tuple(
            sum(v for i, v in enumerate(c) if i != j) / (n - 1) for j, c in enumerate(columns)
        )


def plot_transferability(results: Mapping[str, Transferability], figure: Figure) -> None:
    """A matrix per result; the diagonal is the attack on the network itself."""
    most = max(len(r.runs) for r in results.values())
    figure.set_size_inches((3.5 + 0.75 * most) * len(results), 2.5 + 0.55 * most)
    for axes, result in zip(
        figure.subplots(1, len(results), squeeze=False)[0], results.values(), strict=True
    ):
        _draw(result, axes)


def _draw(result: Transferability, axes: Axes) -> None:
    axes.imshow(result.fooled, vmin=0, vmax=1, cmap="Reds", aspect="auto")
    for i, row in enumerate(result.fooled):
        for j, value in enumerate(row):
            axes.text(
                j, i, f"{value:.0%}", ha="center", va="center", fontsize="small",
                color="white" if value > 0.6 else "black", weight="bold" if i == j else "normal",
            )  # fmt: skip
    places = range(len(result.runs))
    axes.set_xticks(places, list(result.runs), rotation=40, ha="right", fontsize="small")
    axes.set_yticks(places, list(result.runs), fontsize="small")
    axes.set(xlabel="scored on", ylabel="made on")
    axes.set_title(f"fooled by {result.attack}, {result.threat}", fontsize="small")


def says_transferability(result: Transferability) -> str:
    """White box against transfer, the best source, and what that says of gradients."""
    n = len(result.runs)
    own = sum(result.fooled[i][i] for i in range(n)) / n
    other = sum(result.elsewhere) / n
    source = max(range(n), key=lambda i: result.elsewhere[i])
    target = max(range(n), key=lambda j: result.from_elsewhere[j])
    tail = (
        f" Examples of others fool {', '.join(result.masked)} more than an attack on the network "
        "itself does: its gradients mislead that attack, so its robustness is overstated."
        if result.masked
        else ""
    )
    return (
        f"{result.attack} in {result.threat} fools a network on {own:.1%} of the images it had "
        f"right, examples made on another of the {n} runs {other:.1%} ({result.images} images). "
        f"Those of {result.runs[source]} carry over best ({result.elsewhere[source]:.1%}), and "
        f"{result.runs[target]} is fooled by others most "
        f"({result.from_elsewhere[target]:.1%}).{tail}"
    )


def cost_transferability(
    group: Group, *, attack: str, args: Mapping[str, Any] | None, limit: int, **_: Any
) -> Iterator[tuple[Subject, Passes]]:
    """On each network the attack, then a look at the clean images and at the examples of all."""
    chosen = create_attack(attack, **(args or {}))
    for _label, subject in group.subjects():
        images = min(limit, len(subject.data))
        yield subject, passes_of(chosen, subject, images) + Passes(images * (1 + len(group)))


@ANALYSES.register(
    "transferability",
    paper="arXiv:1605.07277",
    tags=("attack",),
    result=Transferability,
    plot=plot_transferability,
    cost=cost_transferability,
    says=says_transferability,
    together=True,
)
def transferability(
    group: Group,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    threat: str = "",
    limit: int = 256,
) -> Transferability:
    """Share of the images that a run had right and examples made on another run turn wrong.

    All runs see the same images and the same ball, by default that of the first run. An attack goes
    on after its own network is fooled, to the point with the largest margin, which carries over
    better.
    """
    first = group.subject(0)
    ball = Threat.parse(threat) if threat else first.threat
    if limit < 1:
        raise UserError(f"`limit >= 1` must hold, but got limit={limit}")
    return transfer_matrix(group, first.first(limit), ball, attack, dict(args or {}))


def transfer_matrix(
    group: Group, data: Dataset, threat: Threat, attack: str, args: dict[str, Any]
) -> Transferability:
    """Makes examples on each run, then scores all of them on each; one network at a time."""
    x, y, ids = data.take(torch.arange(len(data)))
    chosen, how = create_attack(attack, **args), How(batch_size=BATCH)
    made: list[Tensor] = []
    task = group.progress.task(f"transferability under {attack}", 2 * len(group))
    for label, subject in group.subjects():
        out = run_attack(chosen, subject.model, x, y, threat, ids=ids, how=how)
        made.append(out.x_adv)
        task.advance(1, note=f"examples made on {label}")
    right: list[Tensor] = []
    wrong: list[list[Tensor]] = []  # [scored on][made on]
    for label, subject in group.subjects():
        right.append(predictions(subject.model, x) == y)
        wrong.append([predictions(subject.model, x_adv) != y for x_adv in made])
        task.advance(1, note=f"scored on {label}")
    task.close()
    fooled, low, high = shares(right, wrong)
    return Transferability(
        attack=attack,
        args=args,
        threat=str(threat),
        images=len(x),
        runs=group.labels,
        right=tuple(int(r.sum()) for r in right),
        fooled=fooled,
        low=low,
        high=high,
        masked=masked(group.labels, low, high),
    )


def shares(right: Sequence[Tensor], wrong: Sequence[Sequence[Tensor]]) -> tuple[Rows, Rows, Rows]:
    """[made on][scored on]: the share of the images that were right and are wrong, with its ends.

    ``wrong`` is [scored on][made on]. A network that has no image right cannot be fooled: 0, with
    an interval of everything.
    """
    counts = [
        [
            (int((flags[i] & mine).sum()), int(mine.sum()))
            for mine, flags in zip(right, wrong, strict=True)
        ]
        for i in range(len(right))
    ]
    spans = [[wilson(k, n) for k, n in row] for row in counts]
    return (
        tuple(tuple(k / max(n, 1) for k, n in row) for row in counts),
        tuple(tuple(s.low for s in row) for row in spans),
        tuple(tuple(s.high for s in row) for row in spans),
    )


def masked(labels: Sequence[str], low: Rows, high: Rows) -> tuple[str, ...]:
    """Runs that some other run's examples fool more than their own, beyond the intervals."""
    n = range(len(labels))
    return tuple(labels[j] for j in n if any(low[i][j] > high[j][j] for i in n if i != j))
