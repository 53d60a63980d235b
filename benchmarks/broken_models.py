"""How many models that only look robust pass an evaluation, and how many honest ones do not.

    python benchmarks/broken_models.py [--images N] [--out docs/measured/broken-models.md]

The models are those of ``tests/evaluation/broken_models.py`` and ``masked_models.py``, whose true
robust accuracy is known from above, and of ``tests/evaluation/honest_models.py``. Each is evaluated
with `fast` and with `autoattack` in Linf, and looked at by the doctor. Rows are appended to
``--rows`` as they are measured, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import torch
from torch import nn

import buttress as bt
from buttress.data import Dataset
from buttress.evaluation.check_budget import check_ratio
from buttress.evaluation.doctor.core import ModelUnderTest
from buttress.evaluation.smoothed_copy import compare_with_copy
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import UNTRUSTWORTHY
from buttress.threats.norm_ball import NormBall

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from evaluation.broken_models import BROKEN, IMAGES, accuracy, adversarial_examples, digits
from evaluation.honest_models import HONEST, evaluated_eps, published_models
from evaluation.masked_models import MASKED

SUITES = ("fast", "autoattack", "doctor")
WRONG_INPUTS = ("normalized", "labels")  # whose accuracy is reported too low, not too high


@dataclass(frozen=True)
class Outcome:
    """What one way of evaluating says about a model."""

    robust_accuracy: float  # in the worst case, as reported
    is_flagged: bool
    passes: float  # of single images, per image
    seconds: float  # of the processor
    check_ratio: float = 0.0  # passes of checks and cross-checks, over those of the attacks alone


@dataclass(frozen=True)
class Row:
    name: str
    clean: float
    true: float  # upper bound of robust accuracy
    outcomes: dict[str, Outcome]
    has_wrong_inputs: bool = False

    def gap(self, suite: str) -> float:
        """How far the reported robust accuracy is above the true one."""
        return self.outcomes[suite].robust_accuracy - self.true


def evaluate(model: nn.Module, data: Dataset, attack: str, eps: float) -> Outcome:
    started = time.process_time()
    found = bt.evaluate(model, data, [f"{attack}:Linf:{eps}"])
    seconds = time.process_time() - started
    records = list(found.records.values())
    passes = sum(map(_passes, records))
    is_flagged = not found.is_trustworthy
    return Outcome(found.worst_case, is_flagged, passes, seconds, check_ratio(records))


def _passes(record: AttackRecord) -> float:
    """Passes per image, of the attack and of its checks."""
    summary = record.metadata.get("cross_check") or {}
    parts = [record.metadata[k] for k in ("forward_passes", "backward_passes", "check_passes")]
    return float(sum(parts) + sum(summary.get(k, 0) for k in ("forward_passes", "copy_passes")))


def diagnose(model: nn.Module, data: Dataset, eps: float) -> Outcome:
    started = time.process_time()
    found = bt.diagnose(model, data, threat=f"Linf:{eps}")
    seconds = time.process_time() - started
    is_flagged = found.trust_level == UNTRUSTWORTHY
    return Outcome(min(found.accuracy.values()), is_flagged, found.passes / len(data), seconds)


def outcomes_of(model: nn.Module, data: Dataset, eps: float, exact: int) -> dict[str, Outcome]:
    """What each suite says; AutoAttack, which takes longest, on the first ``exact`` images."""
    found = {"fast": evaluate(model, data, "fast", eps), "doctor": diagnose(model, data, eps)}
    if exact:
        found["autoattack"] = evaluate(model, data.select(range(exact)), "autoattack", eps)
    return found


def broken_row(name: str, images: int, exact: int) -> Row:
    broken = {**BROKEN, **MASKED}[name]
    if broken.truth in WRONG_INPUTS:  # fewer images are not significant
        images = exact = IMAGES
    model, data = broken.make(), digits("test", images)
    outcomes = outcomes_of(model, data, broken.eps, exact)
    clean = accuracy(model, data.images, data.labels)
    if broken.truth in WRONG_INPUTS:
        return Row(name, clean, outcomes["fast"].robust_accuracy, outcomes, True)
    x_adv = adversarial_examples(images, eps=broken.eps)
    if broken.truth == "fresh":
        return Row(name, clean, accuracy(broken.make(), x_adv, data.labels), outcomes)
    if broken.truth == "unseen":  # labels of the evaluated images are memorized
        unseen = digits("test", None).select(range(IMAGES, IMAGES + images))
        x_adv = adversarial_examples(images, IMAGES)
        return Row(name, clean, accuracy(model, x_adv, unseen.labels), outcomes)
    bounds = [outcomes[name].robust_accuracy for name in ("fast", "doctor")]  # on all images
    bounds.append(accuracy(broken.make(), x_adv, data.labels))
    subject = ModelUnderTest(model, data, NormBall("Linf", broken.eps))
    comparison = compare_with_copy(subject)
    if comparison.copy is not None and comparison.has_other_gradients:
        strong = bt.attacks.PGD(eps=broken.eps, steps=50, loss="margin", restarts=2)
        x_adv = strong(comparison.copy, data.images, data.labels)
        bounds.append(accuracy(model, x_adv, data.labels))
    return Row(name, clean, min(bounds), outcomes)


def honest_row(name: str, images: int) -> Row:
    honest = {**HONEST, **published_models()}[name]
    model, data = honest.make(), honest.data(images)
    outcomes = outcomes_of(model, data, evaluated_eps(model, data), 0)
    clean = accuracy(model, data.images, data.labels)
    return Row(name, clean, min(o.robust_accuracy for o in outcomes.values()), outcomes)


def collect(names: Sequence[str], make_row: Callable[[str], Row], path: Path) -> list[Row]:
    """The row of each name: from a file of rows, or measured and added to it."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = {row.name: row for row in map(parse_row, lines)}
    for name in names:
        if name not in known:
            known[name] = row = make_row(name)
            with path.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            flags = ", ".join(s for s, o in row.outcomes.items() if o.is_flagged) or "none"
            print(f"{name}: true {row.true:.2f}, flagged by {flags}", file=sys.stderr, flush=True)
    return [known[name] for name in names]


def parse_row(line: str) -> Row:
    row = json.loads(line)
    return Row(**{**row, "outcomes": {k: Outcome(**v) for k, v in row["outcomes"].items()}})


def summary_table(broken: Sequence[Row], honest: Sequence[Row]) -> str:
    wrong_inputs = [row for row in broken if row.has_wrong_inputs]
    defences = [row for row in broken if not row.has_wrong_inputs]
    lines = [
        "| | `fast` | `autoattack` | `doctor` |",
        "| --- | ---: | ---: | ---: |",
    ]

    def line(text: str, value: Callable[[str], str]) -> None:
        lines.append(f"| {text} | {' | '.join(value(s) for s in SUITES)} |")

    def flagged(rows: Sequence[Row]) -> Callable[[str], str]:
        def count(suite: str) -> str:
            outcomes = [r.outcomes[suite] for r in rows if suite in r.outcomes]
            return f"{sum(o.is_flagged for o in outcomes)} of {len(outcomes)}" if outcomes else "-"

        return count

    def missed_gap(suite: str) -> str:
        missed = [r.gap(suite) for r in defences if not r.outcomes[suite].is_flagged]
        return f"{100 * max(0.0, *missed):.1f} points" if missed else "none passed"

    line("defences flagged", flagged(defences))
    line("largest gap to the true robust accuracy that passed", missed_gap)
    line("largest gap, flagged or not", lambda s: f"{100 * max(r.gap(s) for r in defences):.0f}")
    line("wrong normalization or labels flagged", flagged(wrong_inputs))
    line("honest models flagged", flagged(honest))
    for kind, rows in (("defences", defences), ("honest models", honest)):
        line(f"passes per image, {kind} (mean)", lambda s, rows=rows: _mean_cost(rows, s, "passes"))  # type: ignore[misc]
        line(f"CPU seconds, {kind} (mean)", lambda s, rows=rows: _mean_cost(rows, s, "seconds"))  # type: ignore[misc]
    return "\n".join(lines) + "\n"


def _mean_cost(rows: Sequence[Row], suite: str, cost: str) -> str:
    values = [getattr(r.outcomes[suite], cost) for r in rows if suite in r.outcomes]
    value = mean(values) if values else math.nan
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if cost == "passes" else f"{value:.1f}"


def missed_table(broken: Sequence[Row]) -> str:
    lines = ["| not flagged by | model | reported | true |", "| --- | --- | ---: | ---: |"]
    for suite in SUITES:
        for row in broken:
            outcome = row.outcomes[suite]
            if not outcome.is_flagged:
                numbers = f"{100 * outcome.robust_accuracy:.1f} | {100 * row.true:.1f}"
                lines.append(f"| `{suite}` | {row.name} | {numbers} |")
    return "\n".join(lines) + "\n"


def cost_text(honest: Sequence[Row], images: int) -> str:
    """What checks add to the passes of `fast` on honest models."""
    ratios = sorted(row.outcomes["fast"].check_ratio for row in honest)
    return (
        f"Checks and cross-checks add {median(ratios):.0%} (median; {ratios[0]:.0%} to "
        f"{ratios[-1]:.0%}) to the passes of `fast` alone on {images} images of the honest "
        "models, and less on more images: checks attack at most 64.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES, help="per broken model")
    parser.add_argument("--exact", type=int, default=12, help="the same, for autoattack")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/broken-models.md"))
    parser.add_argument("--rows", type=Path, default=Path("broken-models.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = options.images, options.exact
    broken = collect([*BROKEN, *MASKED], lambda name: broken_row(name, *size), options.rows)
    names = [*HONEST, *published_models()]
    honest = collect(names, lambda name: honest_row(name, IMAGES), options.rows)
    parts = [summary_table(broken, honest), missed_table(broken), cost_text(honest, IMAGES)]
    options.out.write_text("\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
