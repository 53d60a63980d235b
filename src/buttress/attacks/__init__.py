"""Adversaries. Adding one is a file here and an import line below."""

from buttress.attacks import apgd as _apgd  # noqa: F401
from buttress.attacks import autoattack as _autoattack  # noqa: F401
from buttress.attacks import fab as _fab  # noqa: F401
from buttress.attacks import fast as _fast  # noqa: F401
from buttress.attacks import gama as _gama  # noqa: F401
from buttress.attacks import noise as _noise  # noqa: F401
from buttress.attacks import pgd as _pgd  # noqa: F401
from buttress.attacks import square as _square  # noqa: F401
from buttress.attacks import transfer as _transfer  # noqa: F401
from buttress.attacks.call import attack, create_attack, list_attacks, run_attack
from buttress.attacks.core import ATTACKS, Attack, State
from buttress.attacks.loop import Outcome
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
