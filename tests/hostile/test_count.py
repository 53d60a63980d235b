"""How many hostile inputs there are, for the page that tells of them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "safety.md"


def test_the_page_tells_how_many_cases_there_are() -> None:
    files = sorted(p.stem for p in HERE.glob("test_*.py") if p.stem != "test_count")
    counts = {name: importlib.import_module(f"hostile.{name}").CASES for name in files}
    assert sum(counts.values()) >= 500
    rows = dict(re.findall(r"`tests/hostile/(test_\w+)\.py` \| (\d[\d,]*) \|", PAGE.read_text()))
    assert rows.keys() == counts.keys()
    for name, count in rows.items():  # a new attack or command brings cases along
        assert counts[name] >= int(count.replace(",", "")), name
