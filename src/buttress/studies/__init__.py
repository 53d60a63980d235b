"""Studies: a question, the grid of runs that answers it, and its results."""

from buttress.studies.answer import answer_study, run_group_analyses, write_study_answer
from buttress.studies.claims import CLAIMS
from buttress.studies.grid import (
    ExpandedStudy,
    GridRun,
    LabelFilter,
    expand_study,
    parse_label_filter,
    select_runs,
)
from buttress.studies.jobs import RunJob, complete_run, make_jobs
from buttress.studies.plan import plan_study
from buttress.studies.search import SearchSpec, list_searches, load_search
from buttress.studies.spec import SCALES, Scale, StudySpec, list_studies, load_study, parse_scale

__all__ = [
    "CLAIMS",
    "SCALES",
    "ExpandedStudy",
    "GridRun",
    "LabelFilter",
    "RunJob",
    "Scale",
    "SearchSpec",
    "StudySpec",
    "answer_study",
    "complete_run",
    "expand_study",
    "list_searches",
    "list_studies",
    "load_search",
    "load_study",
    "make_jobs",
    "parse_label_filter",
    "parse_scale",
    "plan_study",
    "run_group_analyses",
    "select_runs",
    "write_study_answer",
]
