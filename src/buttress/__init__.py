"""Which image classifier architectures hold up under attack, and why.

The public names are loaded when they are first used, so that ``import buttress`` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # to type checkers a name is public when it is imported `as` itself
    from buttress import attacks as attacks
    from buttress.analysis import analyze as analyze
    from buttress.analysis import list_analyses as list_analyses
    from buttress.attacks import list_attacks as list_attacks
    from buttress.data import Dataset as Dataset
    from buttress.data import corrupt as corrupt
    from buttress.data import corrupt_dataset as corrupt_dataset
    from buttress.data import list_augmentations as list_augmentations
    from buttress.data import list_corruptions as list_corruptions
    from buttress.data import list_datasets as list_datasets
    from buttress.data import load_dataset as load_dataset
    from buttress.engine import attack as attack
    from buttress.evaluation import Diagnosis as Diagnosis
    from buttress.evaluation import Evaluation as Evaluation
    from buttress.evaluation import accuracy_curve as accuracy_curve
    from buttress.evaluation import benchmark as benchmark
    from buttress.evaluation import diagnose as diagnose
    from buttress.evaluation import evaluate as evaluate
    from buttress.evaluation import evaluate_until as evaluate_until
    from buttress.evaluation import list_checks as list_checks
    from buttress.evaluation import list_suites as list_suites
    from buttress.evaluation import minimum_norms as minimum_norms
    from buttress.export.export import export_run as export_run
    from buttress.models import create_model as create_model
    from buttress.models import from_pretrained as from_pretrained
    from buttress.models import list_models as list_models
    from buttress.models import load_model as load_model
    from buttress.report import write_report as write_report
    from buttress.results import Comparison as Comparison
    from buttress.results import compare as compare
    from buttress.studies import list_searches as list_searches
    from buttress.studies import list_studies as list_studies
    from buttress.threats import NormBall as NormBall
    from buttress.threats import Threat as Threat
    from buttress.threats import list_threats as list_threats
    from buttress.training import finetune as finetune
    from buttress.training import list_objectives as list_objectives
    from buttress.training import list_recipes as list_recipes
    from buttress.training import train as train

    analyse = analyze

_MODULE_OF = {
    "attacks": "",
    "attack": "engine",
    "list_attacks": "attacks",
    "Dataset": "data",
    "corrupt": "data",
    "corrupt_dataset": "data",
    "list_augmentations": "data",
    "list_corruptions": "data",
    "list_datasets": "data",
    "load_dataset": "data",
    "list_models": "models",
    "create_model": "models",
    "from_pretrained": "models",
    "load_model": "models",
    "NormBall": "threats",
    "Threat": "threats",
    "list_threats": "threats",
    "finetune": "training",
    "list_objectives": "training",
    "list_recipes": "training",
    "train": "training",
    "Evaluation": "evaluation",
    "accuracy_curve": "evaluation",
    "benchmark": "evaluation",
    "Diagnosis": "evaluation",
    "diagnose": "evaluation",
    "evaluate": "evaluation",
    "evaluate_until": "evaluation",
    "list_checks": "evaluation",
    "list_suites": "evaluation",
    "minimum_norms": "evaluation",
    "list_analyses": "analysis",
    "analyze": "analysis",
    "Comparison": "results",
    "compare": "results",
    "list_searches": "studies",
    "list_studies": "studies",
    "export_run": "export",
    "write_report": "report",
}
_ALIASES = {"analyse": "analyze"}

__all__ = ["__version__", *sorted((*_MODULE_OF, *_ALIASES))]


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'buttress' has no attribute {name!r}{_suggest(name)}")
    if not (module := _MODULE_OF[name]):
        return importlib.import_module(f"buttress.{name}")
    return getattr(importlib.import_module(f"buttress.{module}"), name)


def _suggest(name: str) -> str:
    if name.startswith("_"):  # asked for by other code, not typed
        return ""
    from buttress.registry import close_names_text

    if name[0].isupper() and hasattr(importlib.import_module("buttress.attacks"), name):
        return f"; attacks are in bt.attacks: bt.attacks.{name}(eps=8/255)(model, x, y)"

    return close_names_text(name, __all__)


def __dir__() -> list[str]:
    return __all__
