"""Searches: the most robust models of a grid within a budget, by successive halving."""

from buttress.studies.search.candidates import Candidate, CandidatePool, build_candidates
from buttress.studies.search.halving import (
    HalvingState,
    max_flops,
    score_interval,
    successive_halving,
)
from buttress.studies.search.spec import (
    HalvingSpec,
    SearchBudget,
    SearchSpec,
    list_searches,
    load_search,
)
from buttress.studies.search.summary import SearchSettings, save_search_plot, summarize_search

__all__ = [
    "Candidate",
    "CandidatePool",
    "HalvingSpec",
    "HalvingState",
    "SearchBudget",
    "SearchSettings",
    "SearchSpec",
    "build_candidates",
    "list_searches",
    "load_search",
    "max_flops",
    "save_search_plot",
    "score_interval",
    "successive_halving",
    "summarize_search",
]
