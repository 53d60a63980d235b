"""Answers of studies before any run, made once for all tests that read them."""

from __future__ import annotations

from functools import cache

import pytest

from buttress.records.answer import Answer
from buttress.study import Scale, answer, load_study
from unrun import Unrun


@pytest.fixture(scope="session")
def unrun(tmp_path_factory: pytest.TempPathFactory) -> Unrun:
    """The answer of a shipped study from an empty folder."""
    empty = tmp_path_factory.mktemp("empty")

    @cache
    def made(name: str, scale: Scale) -> Answer:
        return answer(load_study(name), scale, empty)

    return made
