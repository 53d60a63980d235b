"""Adversaries. Adding one is a file here and an import line below.

``bt.attacks.PGD(eps=8/255, norm="Linf")(model, x, y)`` and the like for every registered attack are
made from the registry when they are first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

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
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.engine.configured import ConfiguredAttack

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackState",
    "ModelOutput",
    "Problem",
    "create_attack",
    "list_attacks",
]


class _AttackModule(ModuleType):
    """A module with an attack: called as if it were the attack, it says how that is written."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        name = self.__name__.rpartition(".")[2]
        raise UserError(
            f"bt.attacks.{name} is a module; an attack is written bt.attacks.PGD(eps=8/255)"
            "(model, x, y) or bt.attack('pgd', model, x, y, eps=8/255), and `dir(bt.attacks)` has "
            "all"
        )


for _module in {cls.value.__module__ for cls in ATTACKS}:
    sys.modules[_module].__class__ = _AttackModule


def __getattr__(name: str) -> Callable[..., ConfiguredAttack]:
    if name.startswith("_"):  # asked for by other code, not typed
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from buttress.engine.configured import attack_factory

    factory = attack_factory(name)
    if not name[0].isupper():
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; an attack is written "
            f"bt.attacks.{factory.__name__}(eps=8/255)(model, x, y) or bt.attack({name!r}, ...)"
        )
    return factory


def __dir__() -> list[str]:
    return sorted([*__all__, *(entry.value.__name__ for entry in ATTACKS)])
