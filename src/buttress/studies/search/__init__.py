"""Searches: the most robust models of a grid within a budget, by successive halving."""

from buttress.studies.search.candidates import Candidate as Candidate
from buttress.studies.search.candidates import CandidatePool as CandidatePool
from buttress.studies.search.candidates import build_candidates as build_candidates
from buttress.studies.search.halving import HalvingState as HalvingState
from buttress.studies.search.halving import max_flops as max_flops
from buttress.studies.search.halving import score_interval as score_interval
from buttress.studies.search.halving import successive_halving as successive_halving
from buttress.studies.search.spec import HalvingSpec as HalvingSpec
from buttress.studies.search.spec import SearchBudget as SearchBudget
from buttress.studies.search.spec import SearchSpec as SearchSpec
from buttress.studies.search.spec import list_searches as list_searches
from buttress.studies.search.spec import load_search as load_search
from buttress.studies.search.summary import SearchSettings as SearchSettings
from buttress.studies.search.summary import save_search_plot as save_search_plot
from buttress.studies.search.summary import summarize_search as summarize_search
