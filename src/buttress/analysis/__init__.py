"""Why a model holds or falls. Adding an analysis is a file here and an import line below."""

from buttress.analysis import curve as _curve  # noqa: F401
from buttress.analysis import gallery as _gallery  # noqa: F401
from buttress.analysis import sparsity as _sparsity  # noqa: F401
from buttress.analysis.core import ANALYSES, Analysis, Plot, Subject, analyse, list_analyses

__all__ = ["ANALYSES", "Analysis", "Plot", "Subject", "analyse", "list_analyses"]
