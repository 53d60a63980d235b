"""Which image classifier architectures hold up under attack, and why.

The public names are loaded when they are first used, so that ``import buttress`` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from buttress.attacks import attack, list_attacks
    from buttress.comparison import Comparison, compare
    from buttress.data import (
        Dataset,
        corrupt,
        corrupted,
        list_augmentations,
        list_corruptions,
        list_datasets,
        load_dataset,
    )
    from buttress.evaluation import (
        Diagnosis,
        Evaluation,
        accuracy_curve,
        diagnose,
        evaluate,
        list_checks,
        list_suites,
    )
    from buttress.models import create_model, list_models, load_model
    from buttress.sharing import export
    from buttress.threat import Threat
    from buttress.training import finetune, list_objectives, list_recipes, train

_HOME = {
    "attack": "attacks",
    "list_attacks": "attacks",
    "Dataset": "data",
    "corrupt": "data",
    "corrupted": "data",
    "list_augmentations": "data",
    "list_corruptions": "data",
    "list_datasets": "data",
    "load_dataset": "data",
    "list_models": "models",
    "create_model": "models",
    "load_model": "models",
    "Threat": "threat",
    "finetune": "training",
    "list_objectives": "training",
    "list_recipes": "training",
    "train": "training",
    "Evaluation": "evaluation",
    "accuracy_curve": "evaluation",
    "Diagnosis": "evaluation",
    "diagnose": "evaluation",
    "evaluate": "evaluation",
    "evaluate_until": "evaluation",
    "list_checks": "evaluation",
    "list_suites": "evaluation",
    "list_analyses": "analysis",
    "analyse": "analysis",
    "Comparison": "comparison",
    "compare": "comparison",
    "list_searches": "study",
    "list_studies": "study",
    "export": "sharing",
    "write_report": "report",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'buttress' has no attribute {name!r}")
    return getattr(importlib.import_module(f"buttress.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
