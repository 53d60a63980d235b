"""A threat model from the arguments that a user gave: whole, or as eps and norm."""

from __future__ import annotations

from buttress.errors import UserError
from buttress.threats.core import Threat

DEFAULT_NORM = "Linf"


def threat_text(
    threat: str | Threat | None, eps: str | float | None, norm: str | None
) -> str | None:
    """``KIND:BUDGET``; the kind alone if only a norm was given; None if nothing was."""
    if threat is None:
        text = norm if eps is None else f"{norm or DEFAULT_NORM}:{eps}"
        return text if text is None or not isinstance(eps, float) else str(Threat.parse(text))
    if eps is not None and norm is None and isinstance(threat, str) and ":" not in threat:
        return threat_text(None, eps, threat)  # RobustBench's threat_model="Linf", eps=8/255
    if eps is not None or norm is not None:
        raise UserError(
            f"a threat model is given once: as threat {str(threat)!r} or as eps and norm, not both"
        )
    return str(threat)


def threat_from_arguments(
    threat: str | Threat | None = None,
    eps: str | float | None = None,
    norm: str | None = None,
) -> Threat:
    """The threat model of ``threat="Linf:8/255"``, or of ``eps=8/255`` and ``norm="Linf"``."""
    text = threat_text(threat, eps, norm)
    if text is None or ":" not in text:
        raise UserError(
            "a threat model is needed: pass threat='Linf:8/255', or eps=8/255 and norm='Linf'"
            + ("" if text is None else f", but got {text!r} without an eps")
        )
    return threat if isinstance(threat, Threat) else Threat.parse(text)
