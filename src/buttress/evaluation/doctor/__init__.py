"""Checks of whether a robust accuracy can be trusted."""

from buttress.evaluation.doctor import attack_results as _gap  # noqa: F401
from buttress.evaluation.doctor import attack_results as _guessing  # noqa: F401
from buttress.evaluation.doctor import attack_results as _order  # noqa: F401
from buttress.evaluation.doctor import attack_results as _published  # noqa: F401
from buttress.evaluation.doctor import gradients as _gradients  # noqa: F401
from buttress.evaluation.doctor import gradients as _steps  # noqa: F401
from buttress.evaluation.doctor import normalization as _normalisation  # noqa: F401
from buttress.evaluation.doctor import outputs as _mode  # noqa: F401
from buttress.evaluation.doctor import outputs as _outputs  # noqa: F401
from buttress.evaluation.doctor import threat_model as _numbers  # noqa: F401
from buttress.evaluation.doctor.core import CHECKS, AttackRecords, ModelUnderTest, list_checks

__all__ = ["CHECKS", "AttackRecords", "ModelUnderTest", "list_checks"]
