"""Comparison: whether one model holds better than another, on the images both were judged on."""

from buttress.comparison.compare import Comparison, compare
from buttress.comparison.rows import Row, Share
from buttress.comparison.sides import Side

__all__ = ["Comparison", "Row", "Share", "Side", "compare"]
