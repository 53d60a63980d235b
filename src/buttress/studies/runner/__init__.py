"""Execution of runs in parallel: local processes or a Ray cluster."""

from buttress.studies.runner.local import run_jobs as run_jobs
from buttress.studies.runner.queue import FailedJob as FailedJob
from buttress.studies.runner.queue import select_shard as select_shard
from buttress.studies.runner.run import RunnerOptions as RunnerOptions
from buttress.studies.runner.run import StudyOutcome as StudyOutcome
from buttress.studies.runner.run import default_workers as default_workers
from buttress.studies.runner.run import parse_shard as parse_shard
from buttress.studies.runner.run import read_study_status as read_study_status
from buttress.studies.runner.run import run_study as run_study
from buttress.studies.runner.run import worker_threads as worker_threads
from buttress.studies.search.run import run_search as run_search
