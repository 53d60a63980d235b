"""What is particular to each data set; the contract of all is in test_dataset.py."""

from __future__ import annotations

import importlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import download_dataset, load_dataset
from buttress.data.archives import unpack
from buttress.data.core import IMAGENET_BUDGETS
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
from buttress.data.readers import images as streamed
from buttress.errors import DataError
from buttress.system.files import cache_dir
from buttress.system.progress import Progress, SilentProgress
from small_sets import (
    WORDNET,
    caltech101_archive,
    cifar100_archive,
    flowers102_archives,
    imagenette_archive,
    known,
    put_archives,
    shrink,
    small_arrays,
    tar,
    tiny_imagenet_archive,
    write_imagenet,
)

DOWNLOADED: tuple[str, ...]
DOWNLOADED = ("caltech101", "cifar100", "flowers102", "imagenette", "imagenette-160")
DOWNLOADED += ("tiny-imagenet",)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network."""

    def download(url: str, path: Path, progress: Progress) -> Path:
        raise DataError("no route to host")

    shrink(monkeypatch, small_arrays())
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BUTTRESS_IMAGENET", raising=False)
    for module in (cifar, folder_sets):
        monkeypatch.setattr(module, "download", download)
    return tmp_path / "cache"


@pytest.mark.parametrize("name", DOWNLOADED)
class TestGetting:
    def test_absent_says_how_to_get_it(self, name: str, cache: Path) -> None:
        with pytest.raises(DataError, match=f"run `buttress data get {name}`"):
            load_dataset(name)

    def test_out_of_reach_says_which_file_to_put_where(self, name: str, cache: Path) -> None:
        with pytest.raises(DataError) as caught:
            download_dataset(name)
        text = str(caught.value)
        assert "no route to host" in text
        assert f"into {cache / name} and run `buttress data get {name}`" in text
        assert any(ending in text for ending in (".tgz", ".zip", ".tar.gz"))
        assert not list((cache / name).iterdir())

    def test_a_truncated_archive_leaves_nothing(
        self, name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_archives(cache, monkeypatch)
        for path in (cache / name).iterdir():
            path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(DataError, match=r"has MD5 .* put .* into"):
            download_dataset(name)
        # Even if the sum were that of the broken file, it is found out.
        for module in (cifar, folder_sets):
            monkeypatch.setattr(module, "check_md5", lambda path, md5: path)
        with pytest.raises(DataError, match="not a complete"):
            download_dataset(name)
        assert all(path.is_file() for path in (cache / name).iterdir())

    def test_downloads_once(
        self, name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_archives(tmp_path / "site", monkeypatch)
        urls = []

        def download(url: str, path: Path, progress: Progress) -> Path:
            urls.append(url)
            return Path(shutil.copy(tmp_path / "site" / name / url.rpartition("/")[2], path))

        for module in (cifar, folder_sets):
            monkeypatch.setattr(module, "download", download)
        place = download_dataset(name)
        assert download_dataset(name) == place
        assert len(urls) == (3 if name == "flowers102" else 1)
        assert not list((cache / name).glob(".*"))
        assert not list((cache / name).glob("*gz"))
        assert len(load_dataset(name)) > 4


def test_an_archive_with_a_way_outside_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar(cache / "imagenette" / "imagenette2.tgz", {"imagenette2/../../../evil": b"x"})
    monkeypatch.setattr(imagenette, "FULL_ARCHIVE", known(imagenette.FULL_ARCHIVE, path))
    with pytest.raises(DataError, match="points outside"):
        download_dataset("imagenette")
    path = tar(cache / "imagenette" / "imagenette2.tgz", {"other/x.JPEG": b"x"})
    monkeypatch.setattr(imagenette, "FULL_ARCHIVE", known(imagenette.FULL_ARCHIVE, path))
    with pytest.raises(DataError, match="does not contain the folder imagenette2"):
        download_dataset("imagenette")
    assert not list(cache.parent.rglob("evil"))


def test_cifar100_has_fine_labels_and_keeps_its_sums(small_copies: Path) -> None:
    test = load_dataset("cifar100")
    assert test.classes[:2] == ("apple", "aquarium_fish")
    assert len(set(test.classes)) == 100
    assert test.labels.tolist() == small_arrays()["test_labels"].tolist()
    assert torch.equal((test.images * 255).byte(), torch.from_numpy(small_arrays()["test_images"]))


@pytest.mark.parametrize("file", ["sums.json", "train_images.npy"])
def test_a_damaged_cifar100_is_named_and_made_again(
    file: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cifar100_archive(cache / "cifar100")
    spec = replace(cifar100.CIFAR100, md5=known(imagenette.FULL_ARCHIVE, path).md5)
    monkeypatch.setattr(cifar100, "CIFAR100", spec)
    place = download_dataset("cifar100") / file
    whole = place.read_bytes()
    place.unlink()
    place.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"`buttress data get cifar100`"):
        load_dataset("cifar100", "train")
    download_dataset("cifar100")
    assert place.read_bytes() == whole


def test_imagenette_has_one_id_for_both_sizes(small_copies: Path) -> None:
    full, small = load_dataset("imagenette", "val"), load_dataset("imagenette-160", "val")
    assert torch.equal(full.ids, small.ids)
    assert full.classes[1] == "English springer"
    assert full.budgets == IMAGENET_BUDGETS
    assert len(load_dataset("imagenette")) == 20
    assert len(load_dataset("imagenette", "train+val")) == 80
    assert load_dataset("imagenette", image_size=64, limit=2).shape == (3, 64, 64)


def test_large_images_are_cut_as_torchvision_does() -> None:
    importlib.import_module("buttress.models")  # repairs a torchvision built for another torch
    from torchvision.transforms import CenterCrop, Compose, Resize

    cut = Compose([Resize(37), CenterCrop(32)])
    for size in ((100, 60), (60, 100), (41, 40), (37, 37), (300, 77)):
        source = np.random.default_rng(size).integers(0, 256, (*size, 3)).astype(np.uint8)
        image = Image.fromarray(source)
        ours, theirs = streamed.resize_and_center_crop(image, 32, 37), cut(image)
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_imagenet_comes_from_the_users_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DataError, match=r"imagenet must contain .*image-net\.org.*BUTTRESS_IMAGENET"
    ):
        download_dataset("imagenet")
    write_imagenet(tmp_path / "mine")
    monkeypatch.setenv("BUTTRESS_IMAGENET", str(tmp_path / "mine"))
    assert download_dataset("imagenet") == tmp_path / "mine"
    assert len(load_dataset("imagenet")) == 20
    train, val = load_dataset("imagenet", "train"), load_dataset("imagenet", "val")
    assert len(train) + len(val) == 80
    assert train.classes == tuple(WORDNET.values())
    shutil.rmtree(tmp_path / "mine" / "train")
    assert len(load_dataset("imagenet")) == 20  # attacks need the val folder only
    with pytest.raises(DataError, match="has no train"):
        load_dataset("imagenet", "train")
    shutil.rmtree(tmp_path / "mine" / "val" / "n00000003")
    with pytest.raises(DataError, match=r"one folder per class \(5\), but n00000003"):
        load_dataset("imagenet")


def test_the_names_of_imagenet() -> None:
    words = imagenet.imagenet_classes()
    assert len(words) == len(set(words.values())) == 1000
    assert list(words) == sorted(words)
    assert words["n01440764"] == "tench"
    assert set(imagenette.CLASSES) < set(words)


def test_robustbench_images_in_its_order(small_copies: Path) -> None:
    every, some = load_dataset("imagenet"), load_dataset("imagenet-rb5000")
    assert len(some) == 7
    rows = [every.ids.tolist().index(i) for i in some.ids.tolist()]
    assert torch.equal(every.take(rows).y, some.labels)
    assert torch.equal(every.take(rows).x, some.images)
    assert some.labels.tolist() == sorted(some.labels.tolist(), reverse=True)  # as listed
    assert torch.equal(
        load_dataset("imagenet", "val").ids, load_dataset("imagenet-rb5000", "val").ids
    )


def test_where_the_list_of_robustbench_is_found(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_imagenet(cache / "imagenet")
    own = cache / "imagenet" / "imagenet_test_image_ids.txt"
    text = own.read_text()
    own.unlink()
    monkeypatch.setitem(sys.modules, "robustbench", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "robustbench")
    with pytest.raises(DataError, match=r"install the package robustbench, or put .* into"):
        download_dataset("imagenet-rb5000")
    package = tmp_path / "site" / "robustbench"
    (package / "helper_files").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be run')")
    (package / "helper_files" / own.name).write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    assert len(load_dataset("imagenet-rb5000")) == 7
    own.write_text(text.replace("_0.JPEG", "_77.JPEG").replace("_1.JPEG", "_77.JPEG"))
    with pytest.raises(DataError, match=r"val has no such image|different images"):
        load_dataset("imagenet-rb5000")
    own.write_text(text + "\nn00000001/x.JPEG")
    with pytest.raises(DataError, match="must list 7 different images, but has 8 in 8 lines"):
        load_dataset("imagenet-rb5000")


def test_a_hundred_classes_drawn_or_listed(cache: Path) -> None:
    write_imagenet(cache / "imagenet")
    drawn = load_dataset("imagenet-100")
    assert len(drawn) == 12
    assert drawn.num_classes == 3
    assert set(drawn.ids.tolist()) < set(load_dataset("imagenet").ids.tolist())
    path = cache / "imagenet" / "imagenet-100.txt"
    path.write_text("n00000005\nn00000001\nn00000002\n")
    listed = load_dataset("imagenet-100")
    assert listed.classes == ("thing 1", "thing 2", "thing 5")
    assert listed.labels.bincount().tolist() == [4, 4, 4]
    path.write_text("n00000005\nn00000005\nn00000002\n")
    with pytest.raises(DataError, match="3 different classes, but lists 2 in 3 lines"):
        load_dataset("imagenet-100")
    path.write_text("dog\n")
    with pytest.raises(DataError, match="WordNet ids of ImageNet, but has 'dog'"):
        load_dataset("imagenet-100")


def test_the_hundred_classes_never_change() -> None:
    from buttress.data.datasets import imagenet as imagenet_100

    wnids = imagenet_100.imagenet_100_wnids()
    assert len(wnids) == 100
    assert wnids[:3] == ("n01496331", "n01514668", "n01629819")


def test_caltech101_has_as_many_training_images_of_each_class(small_copies: Path) -> None:
    data = {split: load_dataset("caltech101", split) for split in ("train", "val", "test")}
    counts = {split: d.labels.bincount().tolist() for split, d in data.items()}
    assert counts == {"train": [4] * 3, "val": [2] * 3, "test": [6] * 3}
    assert data["test"].classes == ("ant", "BACKGROUND_Google", "Faces")


def test_caltech101_needs_all_classes(small_copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caltech101, "NUM_CLASSES", 102)
    with pytest.raises(DataError, match=r"must contain 102 class folders .*, but contains 3"):
        load_dataset("caltech101")


def test_flowers102_keeps_the_official_splits(small_copies: Path) -> None:
    val = load_dataset("flowers102", "val")
    assert sorted(val.labels.tolist()) == [1, 3]
    assert val.classes[0] == "pink primrose"
    assert val.classes[101] == "blackberry lily"
    assert len(set(val.classes)) == 102
    assert len(load_dataset("flowers102")) == 17


def test_a_damaged_list_of_flowers_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = flowers102_archives(cache / "flowers102")
    sources = tuple(known(s, p) for s, p in zip(flowers102.SOURCES, places, strict=True))
    monkeypatch.setattr(flowers102, "SOURCES", sources)
    (download_dataset("flowers102") / "setid.mat").write_bytes(b"x")
    with pytest.raises(DataError, match=r"setid\.mat is missing or damaged"):
        load_dataset("flowers102")


def test_tiny_imagenet_tests_on_its_annotated_images(small_copies: Path) -> None:
    test = load_dataset("tiny-imagenet")
    assert test.labels.bincount().tolist() == [3, 3, 3]
    assert test.classes == ("goldfish", "newt", "n00000003")
    assert test.shape == (3, 64, 64)
    assert test.budgets["Linf"] == 8 / 255


def test_tiny_imagenet_without_its_lists(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_imagenet_archive(cache / "tiny-imagenet")
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", known(tiny_imagenet.ARCHIVE, path))
    annotations = download_dataset("tiny-imagenet") / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn99999999\t0\n")
    with pytest.raises(DataError, match="must list images of the classes in train"):
        load_dataset("tiny-imagenet")
    annotations.unlink()
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        load_dataset("tiny-imagenet")


def test_two_at_once_do_not_clash(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = imagenette_archive(cache / "imagenette", "imagenette2")
    monkeypatch.setattr(imagenette, "FULL_ARCHIVE", known(imagenette.FULL_ARCHIVE, path))

    def slow(path: Path, out: Path, progress: Progress) -> None:
        unpack(path, out, progress)
        if not (cache_dir() / "imagenette" / "imagenette2").exists():  # the other is faster
            monkeypatch.setattr(folder_sets, "unpack", unpack)
            download_dataset("imagenette")

    monkeypatch.setattr(folder_sets, "unpack", slow)
    assert imagenette.get_imagenette(
        "imagenette", imagenette.FULL_ARCHIVE, SilentProgress()
    ).is_dir()
    assert len(load_dataset("imagenette")) == 20


def test_caltech101_archive_of_the_test_is_as_the_real_one(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(caltech101_archive(tmp_path)) as archive:
        assert "caltech-101/101_ObjectCategories.tar.gz" in archive.namelist()
