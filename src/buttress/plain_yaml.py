"""YAML as configuration needs it: mappings, lists, texts and numbers, each key once."""

from __future__ import annotations

import re
from typing import Any

import yaml

from buttress.errors import UserError

LONGEST = 1 << 20  # characters of a file
MOST_BRACKETS = 200  # open at once, those in texts too
DEEPEST = 32  # mappings and lists inside each other
MOST = 100_000  # values, each counted as often as an alias repeats it
LARGEST = 1 << 63
KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in KINDS}


def parse_yaml(text: str, where: str) -> Any:
    """The content of a YAML text; what is not plain configuration is refused and named."""
    if len(text) > LONGEST:
        raise UserError(f"{where} is too long for a file of settings: {len(text)} characters")
    try:
        _check_brackets(text)
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check(node, 0, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"{where} is not valid YAML: {' '.join(reason.split())[:300]}") from None


def _check_brackets(text: str) -> None:
    """Refuses what would keep the parser busy: its time grows with the square of the depth."""
    depth = 0
    for match in re.finditer(r"[\[{\]}]", text):
        depth += 1 if match[0] in "[{" else -1
        if depth > MOST_BRACKETS:
            raise ValueError("it is nested too deeply")


def _check(node: yaml.Node, depth: int, known: dict[int, int]) -> int:
    """How many values a node stands for; raises `ValueError` with its place if it is not plain."""
    place = f"line {node.start_mark.line + 1}"
    if node.tag not in PLAIN:
        kind = node.tag.rpartition(":")[2]
        raise ValueError(f"{place} holds a {kind}; write it in quotes if it is a text")
    if depth > DEEPEST:
        raise ValueError(f"{place} is nested too deeply")
    if isinstance(node, yaml.ScalarNode):
        return _check_scalar(node, place)
    if id(node) not in known:
        known[id(node)] = MOST  # what contains itself is without end
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, place)
        inside = [n for item in node.value for n in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_check(n, depth + 1, known) for n in inside)
    if known[id(node)] >= MOST:
        raise ValueError(f"{place} stands for {MOST} values or more")
    return known[id(node)]


def _check_scalar(node: yaml.ScalarNode, place: str) -> int:
    if node.tag.endswith(":int"):
        value = yaml.SafeLoader("").construct_yaml_int(node)
        if not -LARGEST <= value < LARGEST:
            raise ValueError(f"{place} holds a number that is too large")
    return 1


def _check_keys(node: yaml.MappingNode, place: str) -> None:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    if len(keys) < len(node.value):
        raise ValueError(f"{place} holds a key that is a list or a mapping")
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"the key {twice[0]!r} occurs twice from {place} on")
