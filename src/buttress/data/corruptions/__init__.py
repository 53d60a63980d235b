"""Common corruptions of images (arXiv:1903.12261): the fifteen standard and four extra ones."""

from buttress.data.corruptions import blur as _glass  # noqa: F401
from buttress.data.corruptions import blur as _lens  # noqa: F401
from buttress.data.corruptions import blur as _motion  # noqa: F401
from buttress.data.corruptions import blur as _zoom  # noqa: F401
from buttress.data.corruptions import digital as _codec  # noqa: F401
from buttress.data.corruptions import digital as _elastic  # noqa: F401
from buttress.data.corruptions import digital as _tone  # noqa: F401
from buttress.data.corruptions import noise as _noise  # noqa: F401
from buttress.data.corruptions import weather as _fog  # noqa: F401
from buttress.data.corruptions import weather as _frost  # noqa: F401
from buttress.data.corruptions import weather as _snow  # noqa: F401
from buttress.data.corruptions import weather as _spatter  # noqa: F401
from buttress.data.corruptions.core import (
    CORRUPTIONS,
    SEVERITIES,
    corrupt,
    list_corruptions,
)
from buttress.data.corruptions.dataset import corrupt_dataset, find_official_corruption

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "corrupt",
    "corrupt_dataset",
    "find_official_corruption",
    "list_corruptions",
]
