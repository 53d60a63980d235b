"""Adversaries. Adding one is a file here and an import line below."""

from buttress.attacks import gama as _gama  # noqa: F401
from buttress.attacks import noise as _noise  # noqa: F401
from buttress.attacks import pgd as _pgd  # noqa: F401
from buttress.attacks.call import attack, create_attack, list_attacks, run_attack
from buttress.attacks.core import ATTACKS, Attack, Outcome, State
from buttress.attacks.problem import Problem, Seen

__all__ = [
    "ATTACKS",
    "Attack",
    "Outcome",
    "Problem",
    "Seen",
    "State",
    "attack",
    "create_attack",
    "list_attacks",
    "run_attack",
]
