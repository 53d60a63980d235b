"""How many passes an attack takes for one image, known before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from buttress.attacks.core import ATTACKS, Attack
from buttress.attacks.problem import Problem
from buttress.streams import Streams
from buttress.threat import Threat


class Passes(NamedTuple):
    """Forward and backward passes of single images, as records count them."""

    forward: float
    backward: float = 0.0

    def times(self, factor: float) -> Passes:
        return Passes(self.forward * factor, self.backward * factor)


def passes_of(
    attack: str, args: Mapping[str, Any], threat: Threat | None, num_classes: int
) -> Passes:
    """The passes for an image that nothing breaks; broken ones take fewer.

    Square may try some queries twice and take a gradient for each hundred: those are not in it.
    """
    return _sum(attack, args, threat, num_classes, usual=False)


def usual_passes_of(
    attack: str, args: Mapping[str, Any], threat: Threat | None, num_classes: int
) -> Passes:
    """The same on average: an ensemble may spare most images some of its parts."""
    return _sum(attack, args, threat, num_classes, usual=True)


def _sum(
    attack: str, args: Mapping[str, Any], threat: Threat | None, num_classes: int, *, usual: bool
) -> Passes:
    if threat is None:
        return Passes(1)
    made = cast(Attack, ATTACKS.create(attack, args))
    problem = _on_paper(threat, num_classes)
    forward = backward = 0.0
    for number, part in enumerate(made.parts(problem)):
        share = made.usual_share(number, threat.norm) if usual else 1.0
        looks = share * part.runs(problem) * max(part.length, 1) * part.passes
        forward += looks + share * part.runs(problem) * part.passes  # and one at the last point
        backward += looks if part.needs_grad else 0
    return Passes(forward, backward)


def _on_paper(threat: Threat, num_classes: int) -> Problem:
    """A problem of one image of which only the threat and the number of classes are looked at."""
    label, x = torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, 1, 1)
    streams = Streams(0, "plan", label)
    return Problem(nn.Identity(), x, label, threat, streams, torch.zeros(1, num_classes))
