"""The rule of RobustWRN (Huang et al., arXiv:2110.03825): a narrow last stage is more robust.

Under adversarial training a WideResNet of widths 10-10-4 holds up better than one of 10-10-10 at a
third of its parameters. The rule carries this ratio to other networks: the width of the last stage
is multiplied by 0.4 and everything else stays (VGG-11-R, DenseNet-121-R, DARTS-R). WRN-34-R is then
made twice as wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from buttress.errors import UserError
from buttress.models.staged import Plan

RATIO = 0.4


def shrink_last_stage(plan: Plan, ratio: float = RATIO) -> Plan:
    """The plan with its last stage ``ratio`` times as wide.

    The width is rounded up to what the family can build: 205 for 512, and 116 for the 288 of
    DARTS, which needs even widths. The published parameter counts fix this rounding.
    """
    return replace(plan, channels=shrink_last(plan.channels, ratio, plan.multiple))


def shrink_last(
    channels: Sequence[int], ratio: float = RATIO, multiple: int = 1
) -> tuple[int, ...]:
    """The same on bare numbers, for a network that has no plan."""
    if not 0 < ratio <= 1:
        raise UserError(f"`0 < ratio <= 1` must hold, but got ratio={ratio}")
    *others, last = channels
    # Binary fractions like 0.4 must not lift a whole number over the next step.
    steps = math.ceil(round(last * ratio / multiple, 6))
    return (*others, steps * multiple)


def scale_widths(plan: Plan, gamma: float) -> Plan:
    """The plan with all its stages ``gamma`` times as wide; the stem stays."""
    scaled = (max(1, round(width * gamma / plan.multiple)) for width in plan.channels)
    return replace(plan, channels=tuple(steps * plan.multiple for steps in scaled))
