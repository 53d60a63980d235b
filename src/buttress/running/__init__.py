"""How work is spread over processes: the only code that knows about them."""

from buttress.running.bag import Failure, shard
from buttress.running.local import run_all

__all__ = ["Failure", "run_all", "shard"]
