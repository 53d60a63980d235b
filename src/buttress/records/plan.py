"""What a study still takes, and what is going on in it."""

from __future__ import annotations

from typing import Literal

from buttress.spec import Spec


class Planned(Spec):
    """One run: what is missing of it and what that takes."""

    key: str
    model: str
    label: str
    seed: int
    state: Literal["done", "failed", "started", "new"]
    missing: tuple[str, ...] = ()
    error: str = ""
    forward: float = 0.0  # passes of single images
    backward: float = 0.0
    flops: float = 0.0
    seconds: float | None = None  # None: nothing is known of the machine


class Plan(Spec):
    """All runs of a study, and the sum over what is missing."""

    study: str
    scale: str
    runs: tuple[Planned, ...]
    counts: dict[str, int]
    forward: float
    backward: float
    flops: float
    hours: float | None
    known_from: str  # what the hours are told from


class Active(Spec):
    """A run that a process has now."""

    key: str
    label: str
    host: str
    pid: int
    since: str
    epochs: int  # trained so far
    of: int
    tasks: int  # records and analyses that are there
    is_stale: bool  # its process is gone


class Status(Spec):
    """A study while it runs."""

    plan: Plan
    active: tuple[Active, ...]
    seconds_left: float | None  # with as many runs at once as now
