"""Oxford Flowers-102 (Nilsback & Zisserman 2008): 8,189 photographs of British flowers.

The splits are the official ones: ten images of each class for ``train``, ten for ``val``, the rest
for ``test``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buttress.data.core import DATASETS, SILENT, Dataset
from buttress.data.folder import File, file_at, files_of
from buttress.data.folder_sets import ALL, FolderSet, Source, facts, get_folder, root_of
from buttress.errors import DataError
from buttress.progress import Progress

SITE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
SOURCES = (
    Source(f"{SITE}/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
    Source(f"{SITE}/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
    Source(f"{SITE}/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
)
PARTS = {"train": "trnid", "val": "valid", "test": "tstid"}
NAMES = """
    pink primrose; hard-leaved pocket orchid; canterbury bells; sweet pea; english marigold;
    tiger lily; moon orchid; bird of paradise; monkshood; globe thistle; snapdragon; colt's
    foot; king protea; spear thistle; yellow iris; globe-flower; purple coneflower; peruvian
    lily; balloon flower; giant white arum lily; fire lily; pincushion flower; fritillary; red
    ginger; grape hyacinth; corn poppy; prince of wales feathers; stemless gentian; artichoke;
    sweet william; carnation; garden phlox; love in the mist; mexican aster; alpine sea holly;
    ruby-lipped cattleya; cape flower; great masterwort; siam tulip; lenten rose; barbeton
    daisy; daffodil; sword lily; poinsettia; bolero deep blue; wallflower; marigold;
    buttercup; oxeye daisy; common dandelion; petunia; wild pansy; primula; sunflower;
    pelargonium; bishop of llandaff; gaura; geranium; orange dahlia; pink-yellow dahlia?;
    cautleya spicata; japanese anemone; black-eyed susan; silverbush; californian poppy;
    osteospermum; spring crocus; bearded iris; windflower; tree poppy; gazania; azalea; water
    lily; rose; thorn apple; morning glory; passion flower; lotus; toad lily; anthurium;
    frangipani; clematis; hibiscus; columbine; desert-rose; tree mallow; magnolia; cyclamen;
    watercress; canna lily; hippeastrum; bee balm; ball moss; foxglove; bougainvillea;
    camellia; mallow; mexican petunia; bromelia; blanket flower; trumpet creeper; blackberry
    lily
"""
CLASSES = tuple(" ".join(name.split()) for name in NAMES.split(";"))


def get_flowers102(progress: Progress) -> Path:
    return get_folder("flowers102", ALL, SOURCES, progress)


@DATASETS.register(
    "flowers102",
    tags=("download", "natural", "large"),
    get=get_flowers102,
    facts=facts(1_020, 6_149, 102),
)
def flowers102(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """Oxford Flowers: 102 classes in the official splits."""
    root = root_of("flowers102", ALL)
    files = files_of(split, read_parts(root), root)
    return FolderSet("flowers102", root, CLASSES).dataset(split, files, image_size)


def read_parts(root: Path) -> dict[str, list[File]]:
    """The files of each split; images and classes are counted from 1 in the lists."""
    labels = read_mat(root / "imagelabels.mat")["labels"].reshape(-1)
    sets = read_mat(root / "setid.mat")

    def files(key: str) -> list[File]:
        numbers = sets[key].reshape(-1).tolist()
        return [file_at(f"jpg/image_{n:05}.jpg", int(labels[n - 1]) - 1) for n in numbers]

    return {part: files(key) for part, key in PARTS.items()}


def read_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        return dict(loadmat(path))
    # A damaged file can raise nearly anything.
    except Exception as error:
        raise DataError(
            f"{path} is missing or damaged ({error}); remove {path.parent} and run "
            "`buttress data get flowers102`"
        ) from None
