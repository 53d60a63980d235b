"""Formatting of numbers and threat models."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import timedelta
from urllib.parse import urlsplit

from buttress.errors import UserError
from buttress.threats.core import Threat
from buttress.threats.norm_ball import parse_eps


def format_percent(value: float, sign: str = "%") -> str:
    """Format as whole percent; one more digit where rounding gives 0% or 100%."""
    if not math.isfinite(value):
        return "unknown"
    percent = round(100 * value)
    is_extreme = percent in (0, 100) and value not in (0.0, 1.0)
    return f"{100 * value:.1f}{sign}" if is_extreme else f"{percent}{sign}"


def format_percent_pair(a: float, b: float) -> tuple[str, str]:
    """Format two fractions so that different ones look different."""
    if format_percent(a) == format_percent(b) and a != b:
        return f"{100 * a:.1f}%", f"{100 * b:.1f}%"
    return format_percent(a), format_percent(b)


def format_tenths(value: float) -> str:
    """``61.2``: percent for tables."""
    return f"{100 * value:.1f}"


def format_range(low: str, high: str) -> str:
    """``12 to 40`` with a dash, or one of them if they are equal."""
    return low if low == high else f"{low}\N{EN DASH}{high}"


def format_interval(low: float, high: float) -> str:
    """``58.0–64.1``: an interval in percent."""
    return format_range(format_tenths(low), format_tenths(high))


def slugify(text: str) -> str:
    """A file name from any text."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:100] or "run"


def pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``1 d 3 h``."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    duration = timedelta(seconds=round(seconds))
    hours, rest = divmod(duration.seconds, 3600)
    parts = [(duration.days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s")]
    start = next(i for i, (n, _) in enumerate(parts) if n)
    return " ".join(f"{n} {unit}" for n, unit in parts[start : start + 2] if n)


def format_threat(text: str) -> str:
    """``Linf:8/255`` -> ``L∞ 8/255``; a fraction only where the number itself is long."""
    norm, _, eps = text.partition(":")
    with contextlib.suppress(UserError):
        number = f"{parse_eps(eps):.12g}" if eps else ""
        eps = number if len(number) <= 4 else eps
    return f"{norm.replace('Linf', 'L∞').replace('L2', 'L₂').replace('L1', 'L₁')} {eps}".strip()


def safe_link(link: str) -> str:
    """The URL if it is a safe http or https URL, else empty."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(link)
        if parts.scheme in ("http", "https") and parts.netloc and not re.search(r"[\s<>\"]", link):
            return link
    return ""


def explain_threat(threat: str) -> str:
    """Describe a threat model in a sentence."""
    if not threat:
        return "unperturbed images"
    try:
        return Threat.parse(threat).describe()
    except UserError:
        return threat
