"""Searches: which networks of a grid hold best under a budget, without training all in full."""

from buttress.study.search.candidates import Candidate, Entrants, entrants_of
from buttress.study.search.draw import draw_search
from buttress.study.search.halving import State, halve, interval_of, most_flops
from buttress.study.search.spec import Budget, Halving, SearchSpec, list_searches, load_search
from buttress.study.search.summary import Asked, summarise

__all__ = [
    "Asked",
    "Budget",
    "Candidate",
    "Entrants",
    "Halving",
    "SearchSpec",
    "State",
    "draw_search",
    "entrants_of",
    "halve",
    "interval_of",
    "list_searches",
    "load_search",
    "most_flops",
    "summarise",
]
