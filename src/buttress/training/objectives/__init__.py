"""Training losses. Adding one is a file here and an import line below."""

from buttress.training.objectives import alp as _alp  # noqa: F401
from buttress.training.objectives import fast_at as _fast  # noqa: F401
from buttress.training.objectives import fat as _fat  # noqa: F401
from buttress.training.objectives import free_at as _free  # noqa: F401
from buttress.training.objectives import gairat as _gairat  # noqa: F401
from buttress.training.objectives import mart as _mart  # noqa: F401
from buttress.training.objectives import multi_norm as _multi_norm  # noqa: F401
from buttress.training.objectives import pgd_at as _pgd_at  # noqa: F401
from buttress.training.objectives import rst as _rst  # noqa: F401
from buttress.training.objectives import standard as _standard  # noqa: F401
from buttress.training.objectives import trades as _trades  # noqa: F401
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    Objective,
    TrainingBatch,
)

__all__ = ["OBJECTIVES", "AdversarialBatch", "LossOutput", "Objective", "TrainingBatch"]
