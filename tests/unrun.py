"""The answer of a shipped study before any run, by its name and scale."""

from __future__ import annotations

from collections.abc import Callable

from buttress.results.study_result import StudyResult
from buttress.studies import Scale

Unrun = Callable[[str, Scale], StudyResult]
