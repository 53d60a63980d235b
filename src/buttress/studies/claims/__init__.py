"""Claims: predicates on the table of a study. A module with a new one is imported here."""

from buttress.results.study_result import ClaimOutcome
from buttress.studies.claims import combinations, groups, ranking, trends  # noqa: F401
from buttress.studies.claims.core import (
    CLAIMS,
    ClaimVerdict,
    Predicate,
    UndecidableClaim,
    assess_claim,
)

__all__ = [
    "CLAIMS",
    "ClaimOutcome",
    "ClaimVerdict",
    "Predicate",
    "UndecidableClaim",
    "assess_claim",
]
