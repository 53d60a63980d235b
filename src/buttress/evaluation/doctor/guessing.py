"""Does the model know anything?"""

from __future__ import annotations

from buttress.evaluation.doctor.core import CHECKS, Chart, finding
from buttress.records.diagnosis import Finding

NEAR_CHANCE = 1.5  # times the accuracy of guessing, as the guard of training has it
ENOUGH = 50  # images: with fewer, chance explains much


@CHECKS.register("guessing", tags=("records",))
def guessing(chart: Chart) -> Finding | None:
    """Without an attack the model is hardly better than guessing."""
    clean = chart.clean
    classes = len((clean.meta.get("classes") if clean is not None else None) or ())
    if clean is None or classes < 2 or len(clean) < ENOUGH:
        return None
    if clean.accuracy > min(NEAR_CHANCE / classes, 1 / classes + 0.05):
        return None
    return finding(
        guessing,
        "warning",
        f"accuracy without an attack is {clean.accuracy:.1%}, and guessing gives {1 / classes:.1%}",
        "see whether the weights were loaded, the labels are in the order of training and the "
        "images have the right size and range",
        {"accuracy": clean.accuracy, "guessing": 1 / classes, "images": len(clean)},
    )
