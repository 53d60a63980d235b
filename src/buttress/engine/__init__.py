"""How an attack is executed: batching, passes, processes and the inference-optimized model."""

from buttress.engine.configured import ConfiguredAttack, attack, configure_attack
from buttress.engine.options import AttackOptions
from buttress.engine.result import AttackResult
from buttress.engine.run import run_attack

__all__ = [
    "AttackOptions",
    "AttackResult",
    "ConfiguredAttack",
    "attack",
    "configure_attack",
    "run_attack",
]
