"""Studies: a question, the grid of runs that answers it, and its results."""

from buttress.studies.answer import answer_study as answer_study
from buttress.studies.answer import run_group_analyses as run_group_analyses
from buttress.studies.answer import write_study_answer as write_study_answer
from buttress.studies.claims import CLAIMS as CLAIMS
from buttress.studies.grid import ExpandedStudy as ExpandedStudy
from buttress.studies.grid import GridRun as GridRun
from buttress.studies.grid import LabelFilter as LabelFilter
from buttress.studies.grid import expand_study as expand_study
from buttress.studies.grid import parse_label_filter as parse_label_filter
from buttress.studies.grid import select_runs as select_runs
from buttress.studies.jobs import RunJob as RunJob
from buttress.studies.jobs import complete_run as complete_run
from buttress.studies.jobs import make_jobs as make_jobs
from buttress.studies.plan import plan_study as plan_study
from buttress.studies.search import SearchSpec as SearchSpec
from buttress.studies.search import list_searches as list_searches
from buttress.studies.search import load_search as load_search
from buttress.studies.spec import SCALES as SCALES
from buttress.studies.spec import Scale as Scale
from buttress.studies.spec import StudySpec as StudySpec
from buttress.studies.spec import list_studies as list_studies
from buttress.studies.spec import load_study as load_study
from buttress.studies.spec import parse_scale as parse_scale
