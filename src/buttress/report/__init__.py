"""Static pages made from the records of runs alone. Nothing here imports torch."""

from __future__ import annotations

from buttress.report.write import write_report

__all__ = ["write_report"]
