"""HTML reports about runs and studies, from their records. Nothing here imports torch."""

from __future__ import annotations

from buttress.report.site import write_site
from buttress.report.write import write_report, write_study_report

__all__ = ["write_report", "write_site", "write_study_report"]
