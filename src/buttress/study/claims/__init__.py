"""What a study may claim. Adding a kind of claim is a class in a file here."""

from buttress.study.claims import groups as _groups  # noqa: F401
from buttress.study.claims import pairs as _pairs  # noqa: F401
from buttress.study.claims import profile as _profile  # noqa: F401
from buttress.study.claims import top as _top  # noqa: F401
from buttress.study.claims import trends as _trends  # noqa: F401
from buttress.study.claims import values as _values  # noqa: F401
from buttress.study.claims.core import CLAIMS, Cannot, Predicate, Verdict, Word, judge

__all__ = ["CLAIMS", "Cannot", "Predicate", "Verdict", "Word", "judge"]
