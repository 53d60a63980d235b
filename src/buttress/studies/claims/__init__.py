"""Claims: predicates on the table of a study."""

from buttress.studies.claims import groups as _groups  # noqa: F401
from buttress.studies.claims import groups as _pairs  # noqa: F401
from buttress.studies.claims import ranking as _top  # noqa: F401
from buttress.studies.claims import ranking as _values  # noqa: F401
from buttress.studies.claims import trends as _profile  # noqa: F401
from buttress.studies.claims import trends as _trends  # noqa: F401
from buttress.studies.claims.core import (
    CLAIMS,
    ClaimOutcome,
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
