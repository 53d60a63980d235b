"""Small made-up copies of the data sets, in the real formats."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buttress.data.datasets import (
    caltech101,
    cifar,
    flowers102,
    imagenet,
    imagenette,
    tiny_imagenet,
)
from buttress.data.datasets import cifar as cifar100
from buttress.data.datasets import folder_dataset as folder_sets
from buttress.data.datasets.cifar import CIFAR10, Array
from buttress.data.datasets.folder_dataset import DownloadFile

WORDNET = {f"n0000000{i}": f"thing {i}" for i in range(1, 6)}
Files = dict[str, bytes]


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 did, as in the official archives."""

    def save_string(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)  # type: ignore[attr-defined]

    dispatch = {**pickle._Pickler.dispatch, bytes: save_string}  # type: ignore[dict-item]  # noqa: RUF012


def pickled(value: Any) -> bytes:
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"numpy._core", b"numpy.core")


def small_arrays() -> dict[str, Array]:
    source = np.random.default_rng(0)
    sizes = {"train": 50, "test": 20}
    images = {f"{k}_images": source.integers(0, 256, (n, 3, 32, 32)) for k, n in sizes.items()}
    labels = {f"{k}_labels": np.arange(n) % 10 for k, n in sizes.items()}
    return {name: array.astype(np.uint8) for name, array in (images | labels).items()}


def jpeg(name: str, size: tuple[int, int] = (48, 40)) -> bytes:
    source = np.random.default_rng(list(name.encode()))
    out = io.BytesIO()
    Image.fromarray(source.integers(0, 256, (*size[::-1], 3)).astype(np.uint8)).save(out, "jpeg")
    return out.getvalue()


def jpegs(names: list[str], size: tuple[int, int] = (48, 40)) -> Files:
    return {name: jpeg(name, size) for name in names}


def tar(path: Path, files: Files) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def zipped(path: Path, files: Files) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write(root: Path, files: Files) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def cifar100_archive(folder: Path) -> Path:
    arrays = small_arrays()

    def batch(part: str) -> bytes:
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        content = {
            b"data": images.reshape(len(images), 3072),
            b"coarse_labels": [0] * len(labels),
            b"fine_labels": labels.tolist(),
            b"filenames": [b"x.png"] * len(labels),
        }
        return pickled(content)

    files = {f"cifar-100-python/{part}": batch(part) for part in ("train", "test")}
    return tar(folder / cifar100.CIFAR100.archive, {**files, "cifar-100-python/meta": b"x"})


def imagenette_archive(folder: Path, top: str) -> Path:
    names = [
        f"{top}/{part}/{wnid}/{wnid}_{i}.JPEG"
        for wnid in imagenette.CLASSES
        for part, count in (("train", 8), ("val", 2))
        for i in range(count)
    ]
    return tar(folder / f"{top}.tgz", {**jpegs(names), f"{top}/noisy_imagenette.csv": b"path"})


def caltech101_archive(folder: Path) -> Path:
    classes = ("BACKGROUND_Google", "ant", "Faces")
    top = caltech101.KEPT_FOLDER
    names = [f"{top}/{name}/image_{i:04}.jpg" for name in classes for i in range(1, 13)]
    inner = tar(folder / "inner.tar.gz", {**jpegs(names), f"{top}/BACKGROUND_Google/tmp": b"x"})
    files = {
        "caltech-101/101_ObjectCategories.tar.gz": inner.read_bytes(),
        "__MACOSX/caltech-101/._101_ObjectCategories.tar.gz": b"mac",
        "caltech-101/Annotations.tar": b"not read",
    }
    inner.unlink()
    return zipped(folder / caltech101.ARCHIVE.file, files)


def flowers102_archives(folder: Path) -> tuple[Path, Path, Path]:
    from scipy.io import savemat

    places = [folder / source.file for source in flowers102.SOURCES]
    tar(places[0], jpegs([f"jpg/image_{i:05}.jpg" for i in range(1, 31)]))
    savemat(places[1], {"labels": [[1 + i % 102 for i in range(30)]]})
    sets = {"trnid": [[3, 1, *range(7, 16)]], "valid": [[2, 4]], "tstid": [[5, 6, *range(16, 31)]]}
    savemat(places[2], sets)
    return places[0], places[1], places[2]


def tiny_imagenet_archive(folder: Path) -> Path:
    top, wnids = tiny_imagenet.KEPT_FOLDER, list(WORDNET)[:3]
    train = [f"{top}/train/{w}/images/{w}_{i}.JPEG" for w in wnids for i in range(12)]
    test = [f"val_{i}.JPEG" for i in range(9)]
    lines = [f"{name}\t{wnids[i % 3]}\t0\t32\t44\t62\n" for i, name in enumerate(test)]
    files = jpegs([*train, *(f"{top}/val/images/{name}" for name in test)], (64, 64))
    texts = {
        f"{top}/val/val_annotations.txt": "".join(lines),
        f"{top}/words.txt": "n00000001\tgoldfish, Carassius auratus\nn00000002\tnewt\n",
        f"{top}/wnids.txt": "\n".join(wnids),
        f"{top}/train/n00000001/n00000001_boxes.txt": "0",
    }
    return zipped(folder / tiny_imagenet.ARCHIVE.file, {**files, **to_bytes(texts)})


def to_bytes(texts: dict[str, str]) -> Files:
    return {name: text.encode() for name, text in texts.items()}


def write_imagenet(root: Path) -> None:
    counts = {"train": 16, "val": 4}
    names = [
        f"{part}/{wnid}/ILSVRC2012_{part}_{wnid}_{i}.JPEG"
        for wnid in WORDNET
        for part, count in counts.items()
        for i in range(count)
    ]
    write(root, jpegs(names))
    listed = [name.removeprefix("val/") for name in names if name.startswith("val/")][1:14:2]
    write(root, to_bytes({imagenet.IMAGE_LIST_FILE: "\n".join(reversed(listed))}))


def put_archives(cache: Path, patch: pytest.MonkeyPatch) -> None:
    """The archives of all sets where a user would put them, and ImageNet as a folder."""
    path = cifar100_archive(cache / "cifar100")
    patch.setattr(cifar100, "CIFAR100", replaced_md5(cifar100.CIFAR100, path))
    for module, name, folder, top in (
        (imagenette, "FULL_ARCHIVE", "imagenette", "imagenette2"),
        (imagenette, "SMALL_ARCHIVE", "imagenette-160", "imagenette2-160"),
    ):
        source = getattr(module, name)
        patch.setattr(module, name, known(source, imagenette_archive(cache / folder, top)))
    path = caltech101_archive(cache / "caltech101")
    patch.setattr(caltech101, "ARCHIVE", known(caltech101.ARCHIVE, path))
    path = tiny_imagenet_archive(cache / "tiny-imagenet")
    patch.setattr(tiny_imagenet, "ARCHIVE", known(tiny_imagenet.ARCHIVE, path))
    places = flowers102_archives(cache / "flowers102")
    sources = tuple(known(s, p) for s, p in zip(flowers102.SOURCES, places, strict=True))
    patch.setattr(flowers102, "SOURCES", sources)
    write_imagenet(cache / "imagenet")


def known(source: DownloadFile, path: Path) -> DownloadFile:
    return source._replace(md5=md5(path))


def replaced_md5(spec: cifar.CifarSource, path: Path) -> cifar.CifarSource:
    from dataclasses import replace

    return replace(spec, md5=md5(path))


def shrink(patch: pytest.MonkeyPatch, arrays: dict[str, Array]) -> None:
    """Sets every published number that the small copies cannot have."""
    assert isinstance(CIFAR10.checksums, dict)
    for name, array in arrays.items():
        patch.setitem(CIFAR10.checksums, name, cifar.array_sha256(array))
    for module, name, value in (
        (cifar, "NUM_VAL", 10),
        (folder_sets, "DEFAULT_IMAGENET_SIZE", 32),
        (imagenette, "SMALL_SIZE", 32),
        (caltech101, "NUM_CLASSES", 3),
        (caltech101, "TRAIN_PER_CLASS", 6),
        (caltech101, "VAL_PER_CLASS", 2),
        (tiny_imagenet, "VAL_FRACTION_DENOMINATOR", 4),
        (imagenet, "VAL_FRACTION_DENOMINATOR", 4),
        (imagenet, "NUM_CLASSES", 3),
        (imagenet, "NUM_IMAGES", 7),
    ):
        patch.setattr(module, name, value)
    patch.setattr(imagenet, "imagenet_classes", lambda: WORDNET)
