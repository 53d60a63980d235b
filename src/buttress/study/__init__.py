"""Studies: a declared question, its grid of runs, and the work that answers it."""

from buttress.study.answer import answer
from buttress.study.cells import Cell, cells_of
from buttress.study.claims import CLAIMS
from buttress.study.conclude import conclude
from buttress.study.only import Only, chosen, parse_only
from buttress.study.plan import plan_of, works_of
from buttress.study.scales import SCALES, Scale, check_scale
from buttress.study.search import SearchSpec, list_searches, load_search
from buttress.study.spec import StudySpec, list_studies, load_study
from buttress.study.together import complete_together
from buttress.study.work import Work, complete, work_of

__all__ = [
    "CLAIMS",
    "SCALES",
    "Cell",
    "Only",
    "Scale",
    "SearchSpec",
    "StudySpec",
    "Work",
    "answer",
    "cells_of",
    "check_scale",
    "chosen",
    "complete",
    "complete_together",
    "conclude",
    "list_searches",
    "list_studies",
    "load_search",
    "load_study",
    "parse_only",
    "plan_of",
    "work_of",
    "works_of",
]
