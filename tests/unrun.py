"""The answer of a shipped study before any run, by its name and scale."""

from __future__ import annotations

from collections.abc import Callable

from buttress.records.answer import Answer
from buttress.study import Scale

Unrun = Callable[[str, Scale], Answer]
