"""Makes the tables of the coverage page from coverage.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parent / "coverage.yaml"
NAMED = (
    "models", "datasets", "recipes", "objectives", "attacks", "suites", "analyses", "studies",
    "claims",
)  # fmt: skip
STATES = ("works", "partly", "missing")


def read() -> list[dict[str, Any]]:
    """The works, each with its rows."""
    works: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return works


def tables() -> str:
    """What does not work yet, and a table for each work."""
    works = read()
    rows = [row for work in works for row in work["rows"]]
    others = [row for row in rows if row["state"] != "works"]
    pieces = [
        f"{len(rows) - len(others)} of {len(rows)} elements work. These do not, or in part:\n"
    ]
    pieces += [f"- **{row['element']}** ({row['state']}): {row['reason']}" for row in others]
    for work in works:
        pieces += [f"\n## {work['work']}\n", "| what | element | in | where | state |"]
        pieces += ["| --- | --- | --- | --- | --- |", *map(line, work["rows"])]
    return "\n".join(pieces) + "\n"


def line(row: dict[str, Any]) -> str:
    """One element as a row of its table."""
    where = [
        f"{kind if len(row[kind]) > 1 else singular(kind)} "
        + ", ".join(f"`{name}`" for name in row[kind])
        for kind in NAMED
        if kind in row
    ]
    where += [f"[{page}]({page}.md)" for page in row.get("pages", ())]
    said = row.get("note") or row.get("reason") or ""
    place = "; ".join(where) + (f". {said}" if said else "")
    return f"| {row['kind']} | {row['element']} | {row['place']} | {place} | {row['state']} |"


def singular(kind: str) -> str:
    return {"studies": "study", "analyses": "analysis"}.get(kind, kind.removesuffix("s"))
