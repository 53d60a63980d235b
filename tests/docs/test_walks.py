"""The walks of the architecture page: every function is there and calls the next one."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"`([a-z_]+(?:\.\w+)+)`")


def read_chains() -> list[list[str]]:
    """The chains of dotted names in the table of walks; a note in brackets is no part of them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [row for row in page.partition("## Walks")[2].splitlines() if "→" in row]
    cells = [re.sub(r"\([^()]*\)", "", row.split("|")[2]) for row in rows]
    return [NAME.findall(chain) for cell in cells for chain in cell.split(";")]


def read_function(dotted: str) -> ast.FunctionDef:
    """The definition of ``folder.module.function`` or ``folder.module.Class.method``."""
    parts = dotted.split(".")
    count = next(n for n in range(len(parts), 0, -1) if module_path(parts[:n]).is_file())
    body: list[ast.stmt] = ast.parse(module_path(parts[:count]).read_text()).body
    node = None
    for name in parts[count:]:
        known = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        node = next((n for n in known if n.name == name), None)
        assert node is not None, f"docs/architecture.md names {dotted}, which is not there"
        body = node.body
    assert isinstance(node, ast.FunctionDef), dotted
    return node


def module_path(parts: list[str]) -> Path:
    return ROOT.joinpath("src", "buttress", *parts).with_suffix(".py")


@pytest.mark.parametrize("chain", read_chains(), ids=lambda chain: chain[0])
def test_every_function_of_a_walk_calls_the_next(chain: list[str]) -> None:
    assert len(chain) > 1
    for caller, callee in pairwise(chain):
        read_function(callee)
        used = {ast.unparse(n).split(".")[-1] for n in ast.walk(read_function(caller))
                if isinstance(n, ast.Name | ast.Attribute)}  # fmt: skip
        assert callee.split(".")[-1] in used, f"{caller} does not call {callee}"
