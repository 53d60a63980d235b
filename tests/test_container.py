"""The Dockerfile as far as it can be checked without an engine: form, versions, what it copies."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
STEPS = [line.split(None, 1) for line in LINES if line.strip() and not line.startswith("#")]
KNOWN = {"ARG", "FROM", "RUN", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD", "ENV"}


def test_the_instructions_exist_and_the_base_comes_first() -> None:
    names = [name for name, _ in STEPS]
    assert set(names) <= KNOWN
    assert names.count("FROM") == 1
    assert set(names[: names.index("FROM")]) <= {"ARG"}
    for name, text in STEPS:
        if name in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(text), list), "the form that passes on signals"
        if name == "RUN":
            assert shlex.split(text), "quotes are closed"


def test_every_variable_is_declared_where_it_is_used() -> None:
    declared: set[str] = set()
    for name, text in STEPS:
        if name == "ARG":
            declared.add(text.partition("=")[0])
        assert set(re.findall(r"\$\{(\w+)\}", text)) <= declared, text
        if name == "FROM":
            declared.clear()  # those before it are known to FROM only


def test_torch_and_torchvision_are_the_tested_pair() -> None:
    given = dict(text.split("=", 1) for name, text in STEPS if name == "ARG")
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    for package in ("torch", "torchvision"):
        assert re.search(rf"^{package}=={re.escape(given[package.upper()])}$", pins, re.MULTILINE)


def test_it_copies_the_wheel_and_nothing_else_enters_the_context() -> None:
    (copied,) = (text for name, text in STEPS if name == "COPY")
    assert copied.startswith("dist/*.whl ")
    assert (ROOT / ".dockerignore").read_text("utf-8").split() == ["*", "!dist/*.whl"]


def test_it_does_not_end_as_root() -> None:
    users = [text for name, text in STEPS if name == "USER"]
    assert users[-1] not in ("root", "0")
