"""Evaluation: suites of attacks, per-sample results, worst-case robust accuracy."""

from buttress.evaluation.benchmark import BenchmarkResult, benchmark
from buttress.evaluation.corruption_error import CorruptionErrorRates, mean_corruption_error
from buttress.evaluation.diagnose import diagnose
from buttress.evaluation.doctor import CHECKS, list_checks
from buttress.evaluation.eps_curve import AccuracyCurve, accuracy_curve
from buttress.evaluation.evaluate import evaluate
from buttress.evaluation.minimum_norm import MinimumNorms, minimum_norms
from buttress.evaluation.subsets import evaluate_until
from buttress.evaluation.suite import load_suite
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.results.evaluation import Evaluation, load_evaluation
from buttress.results.suite_spec import list_suites

__all__ = [
    "CHECKS",
    "AccuracyCurve",
    "BenchmarkResult",
    "CorruptionErrorRates",
    "Diagnosis",
    "Evaluation",
    "Finding",
    "MinimumNorms",
    "accuracy_curve",
    "benchmark",
    "diagnose",
    "evaluate",
    "evaluate_until",
    "list_checks",
    "list_suites",
    "load_evaluation",
    "load_suite",
    "mean_corruption_error",
    "minimum_norms",
]
