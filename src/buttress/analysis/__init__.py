"""Analyses of model robustness. Adding one is a file here and an import line below."""

from buttress.analysis import attention as _attention  # noqa: F401
from buttress.analysis import convergence as _convergence  # noqa: F401
from buttress.analysis import curve as _curve  # noqa: F401
from buttress.analysis import feature as _feature  # noqa: F401
from buttress.analysis import gallery as _gallery  # noqa: F401
from buttress.analysis import input_landscape as _input_landscape  # noqa: F401
from buttress.analysis import landscape as _landscape  # noqa: F401
from buttress.analysis import lipschitz as _lipschitz  # noqa: F401
from buttress.analysis import minimum_norm as _minimum_norm  # noqa: F401
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
from buttress.analysis.core import ANALYSES as ANALYSES
from buttress.analysis.core import AnalysisFunction as AnalysisFunction
from buttress.analysis.core import AnalysisResult as AnalysisResult
from buttress.analysis.core import AnalysisSpec as AnalysisSpec
from buttress.analysis.core import Predictor as Predictor
from buttress.analysis.core import analyze as analyze
from buttress.analysis.core import analyze_group as analyze_group
from buttress.analysis.core import analyze_model as analyze_model
from buttress.analysis.core import analyze_runs as analyze_runs
from buttress.analysis.core import analyze_standalone as analyze_standalone
from buttress.analysis.core import list_analyses as list_analyses
from buttress.analysis.figures import PlotFunction as PlotFunction
from buttress.analysis.figures import save_figure as save_figure
from buttress.analysis.subject import AnalysisNotApplicable as AnalysisNotApplicable
from buttress.analysis.subject import AnalysisSubject as AnalysisSubject
from buttress.analysis.subject import NamedModel as NamedModel
from buttress.analysis.subject import RunGroup as RunGroup
from buttress.analysis.uncertainty import FigureSamples as FigureSamples
from buttress.analysis.uncertainty import figure_samples as figure_samples
