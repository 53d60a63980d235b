"""Images of users in every usual form become the same `Dataset`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data import Dataset as TorchDataset

import buttress as bt
from buttress.data.convert import as_dataset
from buttress.data.pixels import MemoryPixels
from buttress.errors import UserError

PIXELS = np.random.default_rng(0).integers(256, size=(11, 3, 8, 8), dtype=np.uint8)
X = torch.from_numpy(PIXELS).float() / 255
Y = torch.arange(11) % 5
TENSORS = TensorDataset(X, Y)


class Examples(TorchDataset[Any]):
    """A map-style dataset with class names, as torchvision has them."""

    classes = ("a", "b", "c", "d", "e")

    def __init__(self, as_pil: bool = False, noise: float = 0.0) -> None:
        self.as_pil, self.noise = as_pil, noise

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if self.as_pil:
            return PILImage.fromarray(PIXELS[i].transpose(1, 2, 0)), int(Y[i])
        return (X[i] + self.noise * torch.rand(())).clamp(0, 1), int(Y[i])


class DictExamples(Examples):
    def __getitem__(self, i: int) -> Any:
        return {"image": X[i], "label": Y[i]}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(Examples()[i] for i in range(11))


class Image:
    """Stands for ``datasets.Image``."""


class ClassLabel:
    names = Examples.classes


class HuggingFaceLike:
    """The part of ``datasets.Dataset`` that is used."""

    def __init__(self, image: str = "img", label: str = "coarse") -> None:
        self.features = {"id": object(), image: Image(), label: ClassLabel(), "fine": ClassLabel()}
        self.image, self.label = image, label

    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> dict[str, Any]:
        image, label = Examples(as_pil=True)[i]
        return {"id": i, self.image: image, self.label: label, "fine": 0}


FORMS: dict[str, Any] = {
    "pair of tensors": (X, Y),
    "pair of arrays": (PIXELS, Y.numpy()),
    "array and list": (X.numpy(), Y.tolist()),
    "list of two": [X, Y],
    "TensorDataset": TENSORS,
    "torch dataset": Examples(),
    "PIL images": Examples(as_pil=True),
    "subset": Subset(Examples(), range(11)),
    "stream": Stream(),
    "list of examples": [(X[i], int(Y[i])) for i in range(11)],
    "generator": ((X[i], int(Y[i])) for i in range(11)),
    "loader": DataLoader(TENSORS, 4),
    "loader of examples": DataLoader(Examples(), 4),
    "shuffled loader": DataLoader(TENSORS, 4, shuffle=True),
    "loader without last batch": DataLoader(TENSORS, 4, shuffle=True, drop_last=True),
    "loader of a stream": DataLoader(Stream(), 4),
    "loader of dicts": DataLoader(DictExamples(), 4),
    "Hugging Face": HuggingFaceLike(),
    "bt.Dataset": bt.Dataset.from_arrays(X, Y),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(form: str) -> None:
    rng = torch.get_rng_state()
    data = as_dataset(FORMS[form])
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.equal(data.images, X)
    assert torch.equal(data.labels, Y)
    assert data.ids.tolist() == list(range(11))
    assert data.budgets["Linf"] == 8 / 255
    is_named = {"torch dataset", "PIL images", "subset", "Hugging Face"}
    is_named |= {"loader of examples", "loader of dicts"}
    assert data.classes == (Examples.classes if form in is_named else ("0", "1", "2", "3", "4"))


@pytest.mark.parametrize("form", [f for f in FORMS if f != "generator"])
def test_a_limit_takes_the_first_images(form: str) -> None:
    data = as_dataset(FORMS[form], limit=5)
    assert torch.equal(data.images, X[:5])
    with pytest.raises(UserError, match="the data has 11 images, but got limit=12"):
        as_dataset(FORMS[form], limit=12)


def test_no_more_is_read_than_the_limit_needs() -> None:
    read = []

    class Counted(Examples):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            read.append(i)
            return super().__getitem__(i)

    as_dataset(DataLoader(Counted(), 4), limit=4)
    assert sorted(set(read)) == [0, 1, 2, 3]


def test_pixels_of_8_bits_are_kept_as_such() -> None:
    exact, other = as_dataset(TENSORS), as_dataset(TensorDataset(X * 0.9, Y))
    assert isinstance(exact.pixels, MemoryPixels)
    assert isinstance(other.pixels, MemoryPixels)
    assert exact.pixels.data.dtype == torch.uint8
    assert other.pixels.data.dtype == torch.float32
    assert torch.equal(other.images, X * 0.9)
    half = torch.cat([X[:6], X[6:] * 0.9])
    assert torch.equal(as_dataset(DataLoader(TensorDataset(half, Y), 3)).images, half)


def test_a_sampler_of_its_own_is_obeyed() -> None:
    loader = DataLoader(TENSORS, 4, sampler=SubsetRandomSampler([7, 3]))
    assert sorted(as_dataset(loader).labels.tolist()) == sorted([Y[7].item(), Y[3].item()])


def test_random_transforms_are_drawn_once_and_said() -> None:
    with pytest.warns(UserWarning, match="transforms of the data are random"):
        first = as_dataset(DataLoader(Examples(noise=0.2), 4, shuffle=True))
    with pytest.warns(UserWarning, match="use the test transforms"):
        again = as_dataset(Examples(noise=0.2))
    assert not torch.equal(first.images, X)
    assert first.images.shape == again.images.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repeated = as_dataset(DataLoader(Examples(noise=0.2), 4, shuffle=True))
    assert torch.equal(repeated.images, first.images)


def test_gray_images_have_one_channel() -> None:
    image = PILImage.fromarray(PIXELS[0, 0])
    assert as_dataset([(image, 0), (image, 1)]).shape == (1, 8, 8)


MISTAKES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "images alone": (X, ("images alone", "(images, labels)")),
    "images alone in a set": (TensorDataset(X), ("pairs of image and label",)),
    "splits": ({"train": TENSORS, "test": TENSORS}, ("'train', 'test'", "data['test']")),
    "unknown columns": ([{"photo": X[0], "label": 1}], ("photo", "rename the columns")),
    "NHWC": ((X.permute(0, 2, 3, 1), Y), ("(N, H, W, C)", "permute(0, 3, 1, 2)")),
    "normalized": (DataLoader(TensorDataset(X * 4 - 2, Y), 4), ("[0, 1]", "first layer")),
    "one-hot": ((X, torch.eye(5)[Y]), ("(11, 5)", "y.argmax(1)")),
    "float labels": (TensorDataset(X, Y.float()), ("float32", "y.long()")),
    "sizes": ([(X[0], 0), (X[1, :, :5, :5], 1)], ("(3, 8, 8) and (3, 5, 5)", "resize and crop")),
    "empty": ([], ("the data is empty",)),
    "a number": (7, ("a pair (images, labels)", "Hugging Face", "but got int")),
    "a name": ("cifr10", ("unknown dataset 'cifr10'", "did you mean 'cifar10'")),
    "too few labels": ((X, Y[:3]), ("shape (11,)", "(3,)")),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_answered(case: str) -> None:
    data, words = MISTAKES[case]
    with pytest.raises(UserError) as caught:
        as_dataset(data)
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)


def test_a_name_loads_the_dataset() -> None:
    data: Tensor = as_dataset("digits", limit=3).images
    assert torch.equal(data, bt.load_dataset("digits", limit=3).images)


def test_real_datasets_of_hugging_face() -> None:
    """Their own classes, in memory, in the forms that users pass."""
    hugging_face = pytest.importorskip("datasets", reason="the package datasets is not installed")
    features = hugging_face.Features(
        {"img": hugging_face.Image(), "label": hugging_face.ClassLabel(names=[*"abcde"])}
    )
    images = [Examples(as_pil=True)[i][0] for i in range(11)]
    data = hugging_face.Dataset.from_dict({"img": images, "label": Y.tolist()}, features=features)
    forms = (data, data.with_format("torch"), data.to_iterable_dataset())
    for form in (*forms, DataLoader(data.with_format("torch"), batch_size=4)):
        found = as_dataset(form)
        assert torch.equal(found.images, X)
        assert torch.equal(found.labels, Y)
        assert found.classes == (*"abcde",)
    model = bt.create_model("resnet_tiny", num_classes=5, image_size=X.shape[-1], seed=0)
    results = [bt.evaluate(model, form, suite="pgd-linf") for form in (data, (X, Y))]
    assert torch.equal(*(torch.as_tensor(r.correct["pgd-linf"]) for r in results))
    with pytest.raises(UserError, match=r"data\.with_format\('torch'\)"):
        as_dataset(data.with_format("numpy"))
    with pytest.raises(UserError, match="images are not decoded"):
        as_dataset(data.cast_column("img", hugging_face.Image(decode=False)))
    with pytest.raises(UserError, match="pass one split"):
        as_dataset(hugging_face.DatasetDict(test=data))
