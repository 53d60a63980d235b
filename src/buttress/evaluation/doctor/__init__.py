"""Checks of whether a robustness number can be trusted. Adding one is a file and a line below."""

from buttress.evaluation.doctor import gap as _gap  # noqa: F401
from buttress.evaluation.doctor import gradients as _gradients  # noqa: F401
from buttress.evaluation.doctor import guessing as _guessing  # noqa: F401
from buttress.evaluation.doctor import mode as _mode  # noqa: F401
from buttress.evaluation.doctor import normalisation as _normalisation  # noqa: F401
from buttress.evaluation.doctor import numbers as _numbers  # noqa: F401
from buttress.evaluation.doctor import order as _order  # noqa: F401
from buttress.evaluation.doctor import outputs as _outputs  # noqa: F401
from buttress.evaluation.doctor import published as _published  # noqa: F401
from buttress.evaluation.doctor import steps as _steps  # noqa: F401
from buttress.evaluation.doctor.core import CHECKS, Chart, Patient, list_checks

__all__ = ["CHECKS", "Chart", "Patient", "list_checks"]
