"""Studies: a declared question, its grid of runs, and the work that answers it."""

from buttress.study.spec import StudySpec, list_studies, load_study
from buttress.study.work import Work, complete, work_of

__all__ = ["StudySpec", "Work", "complete", "list_studies", "load_study", "work_of"]
