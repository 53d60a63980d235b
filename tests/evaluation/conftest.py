"""Corruptions that are quick, for tests of everything around them."""

from __future__ import annotations

import sys

import pytest

from corruptions_stub import stub


@pytest.fixture
def corruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "buttress.data.corruptions", stub())
