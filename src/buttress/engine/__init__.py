"""How an attack is executed: batching, passes, processes and the inference-optimized model."""

from buttress.engine.batching import AttackResult
from buttress.engine.run import AttackOptions, attack, run_attack

__all__ = ["AttackOptions", "AttackResult", "attack", "run_attack"]
