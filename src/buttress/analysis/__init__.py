"""Analyses of model robustness. Adding one is a file here and an import line below."""

from buttress.analysis import attention as _attention  # noqa: F401
from buttress.analysis import convergence as _convergence  # noqa: F401
from buttress.analysis import curve as _curve  # noqa: F401
from buttress.analysis import feature as _feature  # noqa: F401
from buttress.analysis import gallery as _gallery  # noqa: F401
from buttress.analysis import input_landscape as _input_landscape  # noqa: F401
from buttress.analysis import landscape as _landscape  # noqa: F401
from buttress.analysis import lipschitz as _lipschitz  # noqa: F401
from buttress.analysis import perturbations as _perturbations  # noqa: F401
from buttress.analysis import predict as _predict  # noqa: F401
from buttress.analysis import rademacher as _rademacher  # noqa: F401
from buttress.analysis import semantics as _semantics  # noqa: F401
from buttress.analysis import sharpness as _sharpness  # noqa: F401
from buttress.analysis import size_bound as _size_bound  # noqa: F401
from buttress.analysis import sparsity as _sparsity  # noqa: F401
from buttress.analysis import sparsity_order as _sparsity_order  # noqa: F401
from buttress.analysis import stability as _stability  # noqa: F401
from buttress.analysis import tradeoff as _tradeoff  # noqa: F401
from buttress.analysis import transferability as _transferability  # noqa: F401
from buttress.analysis import transformer_bound as _transformer_bound  # noqa: F401
from buttress.analysis.core import (
    ANALYSES,
    AnalysisFunction,
    AnalysisResult,
    AnalysisSpec,
    Predictor,
    analyze,
    analyze_group,
    analyze_model,
    analyze_runs,
    analyze_standalone,
    is_group_analysis,
    is_standalone_analysis,
    list_analyses,
)
from buttress.analysis.figures import PlotFunction, save_figure
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject, NamedModel, RunGroup
from buttress.analysis.uncertainty import FigureSamples, figure_samples

__all__ = [
    "ANALYSES",
    "AnalysisFunction",
    "AnalysisNotApplicable",
    "AnalysisResult",
    "AnalysisSpec",
    "AnalysisSubject",
    "FigureSamples",
    "NamedModel",
    "PlotFunction",
    "Predictor",
    "RunGroup",
    "analyze",
    "analyze_group",
    "analyze_model",
    "analyze_runs",
    "analyze_standalone",
    "figure_samples",
    "is_group_analysis",
    "is_standalone_analysis",
    "list_analyses",
    "save_figure",
]
