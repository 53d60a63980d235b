"""How work is spread over processes: the only code that knows about them."""

from buttress.running.bag import Failure, shard
from buttress.running.carry import Carried, carry_out
from buttress.running.launch import Launch, default_workers, parse_part, threads_of_one
from buttress.running.local import run_all
from buttress.running.search import carry_search
from buttress.running.status import status_of

__all__ = [
    "Carried",
    "Failure",
    "Launch",
    "carry_out",
    "carry_search",
    "default_workers",
    "parse_part",
    "run_all",
    "shard",
    "status_of",
    "threads_of_one",
]
