"""Checks of whether a robust accuracy can be trusted."""

from buttress.evaluation.doctor import attack_results as _attack_results  # noqa: F401
from buttress.evaluation.doctor import finite_differences as _finite_differences  # noqa: F401
from buttress.evaluation.doctor import gradients as _gradients  # noqa: F401
from buttress.evaluation.doctor import images as _images  # noqa: F401
from buttress.evaluation.doctor import labels as _labels  # noqa: F401
from buttress.evaluation.doctor import memorized as _memorized  # noqa: F401
from buttress.evaluation.doctor import normalization as _normalization  # noqa: F401
from buttress.evaluation.doctor import outputs as _outputs  # noqa: F401
from buttress.evaluation.doctor import threat_model as _threat_model  # noqa: F401
from buttress.evaluation.doctor.core import CHECKS, AttackRecords, ModelUnderTest, list_checks

__all__ = ["CHECKS", "AttackRecords", "ModelUnderTest", "list_checks"]
