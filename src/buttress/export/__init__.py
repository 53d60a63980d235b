"""Export of trained models: weights, a model card and leaderboard records."""

from __future__ import annotations

from buttress.export.export import ExportResult, export_run
from buttress.export.zoo import export_zoo

__all__ = ["ExportResult", "export_run", "export_zoo"]
