"""Common corruptions of images (arXiv:1903.12261): the fifteen, and four extra."""

from buttress.data.corruptions import codec as _codec  # noqa: F401
from buttress.data.corruptions import elastic as _elastic  # noqa: F401
from buttress.data.corruptions import fog as _fog  # noqa: F401
from buttress.data.corruptions import frost as _frost  # noqa: F401
from buttress.data.corruptions import glass as _glass  # noqa: F401
from buttress.data.corruptions import lens as _lens  # noqa: F401
from buttress.data.corruptions import motion as _motion  # noqa: F401
from buttress.data.corruptions import noise as _noise  # noqa: F401
from buttress.data.corruptions import snow as _snow  # noqa: F401
from buttress.data.corruptions import spatter as _spatter  # noqa: F401
from buttress.data.corruptions import tone as _tone  # noqa: F401
from buttress.data.corruptions import zoom as _zoom  # noqa: F401
from buttress.data.corruptions.core import (
    CORRUPTIONS,
    SEVERITIES,
    corrupt,
    list_corruptions,
)
from buttress.data.corruptions.dataset import corrupted
from buttress.data.corruptions.official import find_official

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "corrupt",
    "corrupted",
    "find_official",
    "list_corruptions",
]
