"""Oxford Flowers-102 (Nilsback & Zisserman 2008): 8,189 photographs of British flowers.

The splits are the official ones: ten images of each class for ``train``, ten for ``val``, the rest
for ``test``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buttress.data.core import DATASETS, Dataset
from buttress.data.datasets.folder_dataset import (
    ALL_FILES,
    DownloadFile,
    FolderDataset,
    dataset_root,
    download_folder,
    imagenet_facts,
)
from buttress.data.readers.folder import ImageFile, image_file, select_split
from buttress.errors import DataError
from buttress.system.progress import Progress

SITE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
SOURCES = (
    DownloadFile(f"{SITE}/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
    DownloadFile(f"{SITE}/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
    DownloadFile(f"{SITE}/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
)
SPLIT_KEYS = {"train": "trnid", "val": "valid", "test": "tstid"}
CLASS_NAMES_TEXT = """
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
CLASSES = tuple(" ".join(name.split()) for name in CLASS_NAMES_TEXT.split(";"))


@DATASETS.register(
    "flowers102",
    tags=("download", "natural", "large"),
    get=lambda progress: download_folder("flowers102", ALL_FILES, SOURCES, progress),
    facts=imagenet_facts(1_020, 1_020, 6_149, 102),
)
def flowers102(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Oxford Flowers: 102 classes in the official splits."""
    root = dataset_root("flowers102", ALL_FILES)
    files = select_split(split, read_splits(root), root)
    return FolderDataset("flowers102", root, CLASSES).load_split(split, files, image_size)


def read_splits(root: Path) -> dict[str, list[ImageFile]]:
    """The files of each split; images and classes are counted from 1 in the lists."""
    labels = read_mat(root / "imagelabels.mat")["labels"].reshape(-1)
    sets = read_mat(root / "setid.mat")

    def files(key: str) -> list[ImageFile]:
        numbers = sets[key].reshape(-1).tolist()
        return [image_file(f"jpg/image_{n:05}.jpg", int(labels[n - 1]) - 1) for n in numbers]

    return {part: files(key) for part, key in SPLIT_KEYS.items()}


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
