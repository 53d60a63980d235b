"""Answers of studies before any run, made once for all tests that read them."""

from __future__ import annotations

from functools import cache

import pytest

from buttress.results.study_result import StudyResult
from buttress.studies import Scale, answer_study, expand_study, load_study
from unrun import Unrun


@pytest.fixture(scope="session")
def unrun(tmp_path_factory: pytest.TempPathFactory) -> Unrun:
    """The answer of a shipped study from an empty folder."""
    empty = tmp_path_factory.mktemp("empty")

    @cache
    def made(name: str, scale: Scale) -> StudyResult:
        return answer_study(expand_study(load_study(name), scale), empty)

    return made
