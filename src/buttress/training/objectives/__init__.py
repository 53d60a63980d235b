"""Training losses. Adding one is a file here and an import line below."""

from buttress.training.objectives import pgd_at as _pgd_at  # noqa: F401
from buttress.training.objectives import standard as _standard  # noqa: F401
from buttress.training.objectives.core import OBJECTIVES, Loss, Objective, Step

__all__ = ["OBJECTIVES", "Loss", "Objective", "Step"]
