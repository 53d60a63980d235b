"""Evaluation: suites of attacks, verdicts per image, the worst case."""

from buttress.evaluation.corruption_error import CorruptionError, mean_corruption_error
from buttress.evaluation.curve import Curve, accuracy_curve
from buttress.evaluation.diagnose import diagnose
from buttress.evaluation.doctor import CHECKS, list_checks
from buttress.evaluation.evaluate import evaluate, load_evaluation
from buttress.evaluation.suite import list_suites, load_suite
from buttress.evaluation.until import evaluate_until
from buttress.records.diagnosis import Diagnosis, Finding
from buttress.records.evaluation import Evaluation

__all__ = [
    "CHECKS",
    "CorruptionError",
    "Curve",
    "Diagnosis",
    "Evaluation",
    "Finding",
    "accuracy_curve",
    "diagnose",
    "evaluate",
    "evaluate_until",
    "list_checks",
    "list_suites",
    "load_evaluation",
    "load_suite",
    "mean_corruption_error",
]
