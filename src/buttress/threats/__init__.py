"""What may happen to an image. Adding a threat model is a file here and an import line below."""

from buttress.threats import color as _color  # noqa: F401
from buttress.threats import flow as _flow  # noqa: F401
from buttress.threats import fog as _fog  # noqa: F401
from buttress.threats import gabor as _gabor  # noqa: F401
from buttress.threats import jpeg as _jpeg  # noqa: F401
from buttress.threats import patch as _patch  # noqa: F401
from buttress.threats import snow as _snow  # noqa: F401
from buttress.threats import sparse as _sparse  # noqa: F401
from buttress.threats import spatial as _spatial  # noqa: F401
from buttress.threats.core import THREATS, SearchSet, Space, Threat, list_threats
from buttress.threats.norm_ball import Norm, NormBall

__all__ = ["THREATS", "Norm", "NormBall", "SearchSet", "Space", "Threat", "list_threats"]
