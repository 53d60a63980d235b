"""The table of the README is the one that was measured."""

from __future__ import annotations

import json
from pathlib import Path

from buttress.bench.attacks import summary_table

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_measured_file() -> None:
    results = json.loads((ROOT / "docs" / "measured" / "bench-attacks.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert "\n".join(summary_table(results["rows"])) in readme
    assert str(results["machine"]["cpu"]) in readme
