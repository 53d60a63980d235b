"""How work is spread over processes: the only code that knows about them."""

from buttress.running.local import Failure, run_all

__all__ = ["Failure", "run_all"]
