"""How an attack is executed: batching, passes, processes and the inference-optimized model."""

from buttress.engine.options import AttackOptions
from buttress.engine.result import AttackResult
from buttress.engine.run import attack, run_attack

__all__ = ["AttackOptions", "AttackResult", "attack", "run_attack"]
