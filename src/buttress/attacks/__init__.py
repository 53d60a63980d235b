"""Adversaries. Adding one is a file here and an import line below."""

from buttress.attacks import apgd as _apgd  # noqa: F401
from buttress.attacks import autoattack as _autoattack  # noqa: F401
from buttress.attacks import fab as _fab  # noqa: F401
from buttress.attacks import fast as _fast  # noqa: F401
from buttress.attacks import gama as _gama  # noqa: F401
from buttress.attacks import grid_search as _grid_search  # noqa: F401
from buttress.attacks import noise as _noise  # noqa: F401
from buttress.attacks import patch_pgd as _patch_pgd  # noqa: F401
from buttress.attacks import pgd as _pgd  # noqa: F401
from buttress.attacks import random_search as _random_search  # noqa: F401
from buttress.attacks import sigma_zero as _sigma_zero  # noqa: F401
from buttress.attacks import sparse_pgd as _sparse_pgd  # noqa: F401
from buttress.attacks import transfer as _transfer  # noqa: F401
from buttress.attacks.core import ATTACKS, Attack, AttackState, create_attack, list_attacks
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.square import attack as _square  # noqa: F401

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackState",
    "ModelOutput",
    "Problem",
    "create_attack",
    "list_attacks",
]
