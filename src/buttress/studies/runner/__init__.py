"""Execution of runs in parallel: local processes or a Ray cluster."""

from buttress.studies.runner.local import run_jobs
from buttress.studies.runner.queue import FailedJob, select_shard
from buttress.studies.runner.run import (
    RunnerOptions,
    StudyOutcome,
    default_workers,
    parse_shard,
    run_study,
    worker_threads,
)
from buttress.studies.runner.status import read_study_status
from buttress.studies.search.run import run_search

__all__ = [
    "FailedJob",
    "RunnerOptions",
    "StudyOutcome",
    "default_workers",
    "parse_shard",
    "read_study_status",
    "run_jobs",
    "run_search",
    "run_study",
    "select_shard",
    "worker_threads",
]
