"""A hundred classes of ImageNet, drawn once.

The published study drew its hundred classes with a random key of JAX; the draw here is by hashes
with seed 0, so that the classes differ from those. A file ``imagenet-100.txt`` beside ``train`` and
``val``, one WordNet id per line, sets other classes.
"""

from __future__ import annotations

from buttress.data.core import DATASETS, SILENT, Dataset
from buttress.data.folder_sets import facts
from buttress.data.imagenet import folder, get_imagenet, load, wordnet
from buttress.errors import DataError
from buttress.progress import Progress
from buttress.streams import seed_of

COUNT, SEED = 100, 0
FILE = "imagenet-100.txt"


@DATASETS.register(
    "imagenet-100",
    tags=("natural", "large", "local"),
    get=get_imagenet,
    facts=facts(126_836, 5_000, 100),  # about: it depends on the classes
)
def imagenet_100(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """A hundred classes of your copy of ImageNet, drawn with seed 0 or listed in a file."""
    return load("imagenet-100", split, image_size, wnids())


def wnids() -> tuple[str, ...]:
    """The chosen classes in ascending order."""
    path = folder() / FILE
    if path.is_file():
        return listed(path.read_text(encoding="utf-8").split(), str(path))
    drawn = sorted(wordnet(), key=lambda wnid: seed_of("imagenet-100", SEED, wnid))
    return tuple(sorted(drawn[:COUNT]))


def listed(found: list[str], path: str) -> tuple[str, ...]:
    if strange := [wnid for wnid in found if wnid not in wordnet()]:
        raise DataError(f"{path} must list WordNet ids of ImageNet, but has {strange[0]!r}")
    if len(found) != COUNT or len(set(found)) != COUNT:
        raise DataError(
            f"{path} must list {COUNT} different classes, but has {len(set(found))} in "
            f"{len(found)} lines"
        )
    return tuple(sorted(found))
