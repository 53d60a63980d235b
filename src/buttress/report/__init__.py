"""HTML reports about runs and studies, from their records. Nothing here imports torch."""

from __future__ import annotations as annotations

from buttress.report.site import write_site as write_site
from buttress.report.write import write_report as write_report
from buttress.report.write import write_study_report as write_study_report
