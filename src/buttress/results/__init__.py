"""What passes between the stages: frozen specs and files. Nothing here imports torch.

Names are loaded when they are first used: a spec needs none of what compares runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buttress.results.comparison import Comparison, ComparisonRow, SideAccuracy, compare
    from buttress.results.comparison_sides import ComparisonSide

__all__ = ["Comparison", "ComparisonRow", "ComparisonSide", "SideAccuracy", "compare"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "comparison_sides" if name == "ComparisonSide" else "comparison"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
