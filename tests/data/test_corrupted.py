from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import Dataset, corrupt, corrupt_dataset, find_official_corruption, load_dataset
from buttress.data.corruptions import dataset as official
from buttress.errors import DataError, UnknownNameError, UserError
from small_sets import jpeg


@pytest.fixture
def data() -> Dataset:
    return load_dataset("digits", limit=12)


def put_cifar_c(folder: Path, test: Dataset, patch: pytest.MonkeyPatch) -> np.ndarray:
    """A CIFAR-10-C of as many images as the test set has."""
    patch.setattr(official, "IMAGES_PER_SEVERITY", len(test))
    folder.mkdir(parents=True)
    images = np.random.default_rng(1).integers(0, 256, (5 * len(test), 32, 32, 3)).astype(np.uint8)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", np.tile(test.labels.numpy(), 5).astype(np.uint8))
    return images


def test_everything_but_the_pixels_is_kept(data: Dataset) -> None:
    made = corrupt_dataset(data, "Gaussian-Noise", 4, seed=2)
    assert torch.equal(made.labels, data.labels)
    assert torch.equal(made.ids, data.ids)
    assert (made.classes, made.budgets, made.mean, made.std, made.split, made.shape) == (
        (data.classes, data.budgets, data.mean, data.std, data.split, data.shape)
    )
    assert made.name == "digits+gaussian_noise-4"
    assert torch.equal(made.images, corrupt(data.images, "gaussian_noise", 4, data.ids, seed=2))


def test_batches_and_selection_change_nothing(data: Dataset) -> None:
    made = corrupt_dataset(data, "glass_blur", 3)
    images = made.images
    assert torch.equal(torch.cat([b.x for b in made.batches(5)]), images)
    some = made.select([7, 2]).select([1])
    assert torch.equal(some.images, images[[2]])
    assert torch.equal(corrupt_dataset(data.select([7, 2]), "glass_blur", 3).images, images[[7, 2]])
    assert made.take([]).x.shape == (0, *data.shape)


def test_the_fingerprint_tells_what_was_done(data: Dataset) -> None:
    made = [
        data,
        corrupt_dataset(data, "fog", 3),
        corrupt_dataset(data, "fog", 4),
        corrupt_dataset(data, "snow", 3),
        corrupt_dataset(data, "fog", 3, seed=1),
        corrupt_dataset(data.select(range(5)), "fog", 3),
    ]
    assert len({d.fingerprint() for d in made}) == len(made)
    assert corrupt_dataset(data, "fog", 3).fingerprint() == made[1].fingerprint()
    assert pickle.loads(pickle.dumps(made[1])).fingerprint() == made[1].fingerprint()


def test_streamed_images_are_corrupted_when_read(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in "ab":
            (tmp_path / part / kind).mkdir(parents=True)
            for i in range(3):
                (tmp_path / part / kind / f"{i}.jpg").write_bytes(jpeg(f"{part}{kind}{i}"))
    clean = load_dataset(f"folder:{tmp_path}", image_size=32)
    from buttress.data.readers.folder import folder
    from buttress.system.progress import SilentProgress

    streamed = folder(str(tmp_path), "test", 32, SilentProgress())
    made = corrupt_dataset(streamed, "motion_blur", 2)
    assert torch.equal(made.images, corrupt(clean.images, "motion_blur", 2, clean.ids))
    # Nothing was read before it was asked for.
    for file in tmp_path.rglob("*.jpg"):
        file.unlink()
    late = corrupt_dataset(streamed, "motion_blur", 2)
    with pytest.raises(DataError):
        _ = late.images


def test_mistakes_are_told_at_once(data: Dataset) -> None:
    with pytest.raises(UnknownNameError, match="jpeg_compression"):
        corrupt_dataset(data, "jpeg_compresion", 1)
    with pytest.raises(UserError, match="1 to 5, but got 6"):
        corrupt_dataset(data, "fog", 6)


class TestOfficialArrays:
    def test_are_used_where_they_are(
        self, small_copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        test = load_dataset("cifar10")
        ours = corrupt_dataset(test, "fog", 3)
        assert find_official_corruption("cifar10", "fog") is None
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "cifar10").symlink_to(small_copies / "cifar10")
        monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
        images = put_cifar_c(tmp_path / "cache" / "CIFAR-10-C", test, monkeypatch)
        assert (
            find_official_corruption("cifar10", "fog")
            == tmp_path / "cache" / "CIFAR-10-C" / "fog.npy"
        )
        theirs = corrupt_dataset(test, "fog", 3)
        block = torch.from_numpy(images[2 * len(test) : 3 * len(test)]).permute(0, 3, 1, 2)
        assert torch.equal(theirs.images, block / 255)
        assert torch.equal(theirs.select([4, 1]).images, block[[4, 1]] / 255)
        assert torch.equal(
            corrupt_dataset(test.select([4, 1]), "fog", 3).images, block[[4, 1]] / 255
        )
        assert theirs.name == "cifar10+fog-3-official"
        assert theirs.fingerprint() != ours.fingerprint()
        assert corrupt_dataset(test, "fog", 4).fingerprint() != theirs.fingerprint()
        assert pickle.loads(pickle.dumps(theirs)).fingerprint() == theirs.fingerprint()
        # No array of this name, no test images: made here.
        assert corrupt_dataset(test, "snow", 3).name == "cifar10+snow-3"
        assert corrupt_dataset(load_dataset("cifar10", "val"), "fog", 3).name == "cifar10+fog-3"

    @pytest.mark.parametrize("fault", ["labels", "no labels", "shape", "truncated"])
    def test_must_be_whole_and_fit(
        self, small_copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
    ) -> None:
        test = load_dataset("cifar10")
        monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path))
        folder = tmp_path / "cifar10" / "cifar-10-c"
        images = put_cifar_c(folder, test, monkeypatch)
        if fault == "labels":
            np.save(folder / "labels.npy", np.zeros(5 * len(test), dtype=np.uint8))
        elif fault == "no labels":
            (folder / "labels.npy").unlink()
        elif fault == "shape":
            np.save(folder / "fog.npy", images[:-1])
        else:
            content = (folder / "fog.npy").read_bytes()
            (folder / "fog.npy").write_bytes(content[:1000])
        with pytest.raises(DataError, match=r"cifar-10-c.*download it again"):
            corrupt_dataset(test, "fog", 3)


class TestOfficialFolders:
    def put(self, root: Path, val: Path) -> dict[str, Image.Image]:
        """Each val image, grey, without loss, under the names of ImageNet-C."""
        images: dict[str, Image.Image] = {}
        for file in val.glob("*/*.JPEG"):
            path = root / "noise" / "fog" / "2" / file.parent.name / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.effect_noise((32, 32), 40 + len(images)).convert("RGB")
            image.save(path, format="PNG")
            images[f"val/{file.parent.name}/{file.name}"] = image
        return images

    @pytest.mark.parametrize(
        ("name", "val", "variable"),
        [
            ("imagenet-rb5000", "imagenet/val", "BUTTRESS_IMAGENET_C"),
            ("imagenette", "imagenette/imagenette2/val", "BUTTRESS_IMAGENETTE_C"),
        ],
    )
    def test_are_used_and_not_scaled_again(
        self, small_copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        name: str, val: str, variable: str,
    ) -> None:  # fmt: skip
        from buttress.system.rng import derive_seed

        monkeypatch.setattr(official, "IMAGENET_C_SIZE", 32)
        test = load_dataset(name, image_size=32)
        assert corrupt_dataset(test, "fog", 2).name == f"{name}+fog-2"
        monkeypatch.setenv(variable, str(tmp_path))
        images = self.put(tmp_path, small_copies / val)
        made = corrupt_dataset(test, "fog", 2)
        assert made.name == f"{name}+fog-2-official"
        by_id = {derive_seed(path) >> 1: image for path, image in images.items()}
        expected = np.stack([np.asarray(by_id[i]) for i in test.ids.tolist()])
        assert np.array_equal((made.images * 255).round().byte().permute(0, 2, 3, 1), expected)
        # Images of another size are corrupted here, not made of scaled official ones.
        larger = load_dataset(name, image_size=40)
        assert corrupt_dataset(larger, "fog", 2).name == f"{name}+fog-2"
        with pytest.raises(DataError, match=f"{len(test)} of {len(test)} are missing"):
            corrupt_dataset(test, "fog", 3)
