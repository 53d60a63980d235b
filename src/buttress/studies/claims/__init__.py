"""Claims: predicates on the table of a study. A module with a new one is imported here."""

from buttress.results.study_result import ClaimOutcome as ClaimOutcome
from buttress.studies.claims import combinations, groups, ranking, trends  # noqa: F401
from buttress.studies.claims.core import CLAIMS as CLAIMS
from buttress.studies.claims.core import ClaimAssessment as ClaimAssessment
from buttress.studies.claims.core import Predicate as Predicate
from buttress.studies.claims.core import UndecidableClaim as UndecidableClaim
from buttress.studies.claims.core import assess_claim as assess_claim
from buttress.studies.claims.core import needed_data as needed_data
