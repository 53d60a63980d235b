"""What passes between the stages: frozen specs and files. Nothing here imports torch."""

from buttress.results.comparison import Comparison, ComparisonRow, SideAccuracy, compare
from buttress.results.comparison_sides import ComparisonSide

__all__ = ["Comparison", "ComparisonRow", "ComparisonSide", "SideAccuracy", "compare"]
