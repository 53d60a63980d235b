"""The decision tables of the chooser name things that exist."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import buttress as bt
from buttress.cli.commands import COMMANDS
from doc_blocks import ROOT

PAGE = (ROOT / "docs" / "chooser.md").read_text(encoding="utf-8")
CHOICES: dict[str, Callable[[], list[str]]] = {
    "Which suite": bt.list_suites,
    "Which attack": bt.list_attacks,
    "Which recipe": bt.list_recipes,
}


def names_in_second_column(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    return [name for row in rows for name in re.findall(r"`([a-z][\w-]*)`", row[2])]


@pytest.mark.parametrize("heading", CHOICES)
def test_every_name_in_a_table_exists(heading: str) -> None:
    names = names_in_second_column(heading)
    assert len(names) > 8
    assert [name for name in names if name not in CHOICES[heading]()] == []


def test_every_command_of_the_first_table_exists() -> None:
    commands = re.findall(r"`buttress ([a-z]+)", PAGE)
    assert len(commands) > 8
    assert [command for command in commands if command not in COMMANDS] == []
