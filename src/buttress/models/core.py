"""Models by name: from images in [0, 1] to logits, with the normalization inside."""

from __future__ import annotations

import contextlib
import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from buttress.errors import UnknownNameError, UserError
from buttress.models.factory import Shape
from buttress.models.loading.core import ChannelValues, find_source
from buttress.registry import (
    Registry,
    RegistryEntry,
    close_names_text,
    is_robustbench_name,
    robustbench_name_text,
)
from buttress.results.training_images import TrainingImages
from buttress.system.signatures import explain_arguments

# (num_classes=10, image_size=32, in_channels=3, and typed options of its own) -> network
Factory = Callable[..., nn.Module]

# Metadata of an entry: `sizes` (ImageSizes), `published` (parameters in millions as printed, or
# None), and where the general rules of `parts` do not fit, `components` and `blocks`; families
# register all of it from their tables (`variants`).
MODELS: Registry[Factory] = Registry("model")

# Families with more members than can be listed: a function from a name to its factory, or None.
PATTERNS: Registry[Callable[[str], Factory | None]] = Registry("model pattern")

# Larger values are a mistake or a malicious file and would only fill the memory.
PRETRAINED_HINT = {
    "pretrained": "trained weights are loaded by bt.load_model('timm:NAME', pretrained=True) or "
    "bt.load_model('zoo:NAME')"
}
MAX_SHAPE = {"num_classes": 100_000, "image_size": 4096, "in_channels": 1024}


@dataclass(frozen=True)
class ImageSizes:
    """The image sizes that a family can take."""

    minimum: int
    multiple: int = 1

    def __contains__(self, size: int) -> bool:
        return size >= self.minimum and size % self.multiple == 0

    def __str__(self) -> str:
        first = -(-self.minimum // self.multiple) * self.multiple
        of = f"multiples of {self.multiple}, " if self.multiple > 1 else ""
        return f"{of}{first} and more"


class Normalize(nn.Module):
    """Normalize images with a per-channel mean and standard deviation."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: ChannelValues = 0.0, std: ChannelValues = 1.0, channels: int = 3
    ) -> None:
        super().__init__()
        self.register_buffer("mean", _per_channel("mean", mean, channels))
        self.register_buffer("std", _per_channel("std", std, channels))
        if not all(math.isfinite(v) for v in _to_list(mean)):
            raise UserError(f"the mean must be finite in every channel, but got mean={mean}")
        if not all(v > 0 and math.isfinite(v) for v in _to_list(std)):
            raise UserError(f"`std > 0` must hold in every channel, but got std={std}")

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Classifier(nn.Module):
    """A classifier from images in [0, 1] to logits; normalization is its first layer."""

    def __init__(
        self,
        net: nn.Module,
        normalize: Normalize,
        name: str,
        shape: Shape,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.net = net
        self.name = name
        self.options = dict(options or {})  # further arguments of the architecture
        self.num_classes = shape["num_classes"]
        self.image_size = shape["image_size"]
        self.in_channels = shape["in_channels"]
        self.warnings: tuple[str, ...] = ()  # warnings about numbers measured on this model
        self.training_images: TrainingImages | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.normalize(x))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model to a folder that `load_model` and `from_pretrained` read."""
        from buttress.models.saving import save_pretrained

        save_pretrained(self, folder)

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Saved by Buttress",
    ) -> str:
        """Upload the model to ``OWNER/NAME`` on the Hugging Face hub; return its address."""
        from buttress.models.saving import push_to_hub

        return push_to_hub(self, repository, private=private, token=token, message=commit_message)


@explain_arguments("bt.create_model('resnet_18', num_classes=10)", PRETRAINED_HINT)
def create_model(  # noqa: PLR0913 - the one place where a model is described in full
    name: str,
    *,
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    mean: ChannelValues | None = None,
    std: ChannelValues | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> Classifier:
    """Create a model with random weights.

    Args:
        name: A registered name, ``timm:NAME``, or ``file.py:function`` for a model of your own.
        num_classes: How many logits it has.
        image_size: Height and width of its images.
        in_channels: Channels of its images.
        mean: Per-channel mean used to normalize the input; no normalization if None.
        std: Per-channel standard deviation used to normalize the input.
        options: Further arguments of the family, like ``{"activation": "silu"}``.
        seed: Seed of the weights; the global generator is untouched. Without it, weights are
            drawn from the global generator.
    """
    shape = {"num_classes": num_classes, "image_size": image_size, "in_channels": in_channels}
    for argument, value in shape.items():
        if not isinstance(value, int):
            raise UserError(f"`{argument}` must be an integer, but got {value!r}")
        if value < 1:
            raise UserError(f"`{argument} >= 1` must hold, but got {argument}={value}")
        if value > MAX_SHAPE[argument]:
            raise UserError(
                f"`{argument} <= {MAX_SHAPE[argument]}` must hold, but got {argument}={value}"
            )
    normalize = Normalize(0.0 if mean is None else mean, 1.0 if std is None else std, in_channels)
    with seeded_weights(seed):
        net = find_source(name, architectures_only=True).build(name, shape, options or {})
    if isinstance(net, Classifier) and mean is None and std is None:
        return net  # from a user's function that calls us
    return Classifier(net, normalize, name, shape, options)


def resolve_device(name: str) -> str:
    """The device of a name; ``auto`` is the fastest available."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def move_to_device(model: Classifier, device: str | torch.device) -> Classifier:
    """Move the model to a device; raise `UserError` if the device is not available."""
    device = resolve_device(device) if isinstance(device, str) else device
    try:
        model_on_device = model.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:200]
        raise UserError(f"device {str(device)!r} is not available: {reason}") from None
    if any(tensor.is_meta for tensor in model_on_device.state_dict().values()):
        raise UserError(f"device {str(device)!r} cannot hold weights; use cpu, cuda or mps")
    return model_on_device


@explain_arguments("bt.list_models('transformer')", {"pretrained": "trained models are tag='zoo'"})
def list_models(tag: str | None = None) -> list[str]:
    """List the registered names, or those with a tag: cnn, transformer, hybrid, tiny, family ...

    A tag with ``*`` is a pattern of names, as in timm. The tag ``zoo`` lists trained models that
    come with the package, as `load_model` takes them.
    """
    if tag == "zoo":
        from buttress.models.loading.zoo import list_zoo

        return list_zoo()
    if tag is not None and "*" in tag:
        return fnmatch.filter(MODELS.names(), tag)
    return MODELS.names(tag)


def find_model(name: str) -> RegistryEntry[Factory]:
    """Return the registry entry of a name, or of a name that a family's pattern parses."""
    if name not in MODELS:
        for pattern in PATTERNS:
            if factory := pattern.value(name):
                return RegistryEntry(
                    name, factory, pattern.paper, pattern.tags, pattern.summary, pattern.metadata
                )
        raise UnknownNameError(
            f"unknown model {name!r}{suggest_models(name)} Run `buttress list models` to see all "
            f"{len(MODELS)}."
        )
    return MODELS.entry(name)


def suggest_models(name: str) -> str:
    """``; did you mean 'timm:resnet10t'?`` for a name of timm, else the nearest names."""
    import timm

    if is_robustbench_name(name):
        return robustbench_name_text(name)
    if timm.is_model(name):
        return f"; did you mean 'timm:{name}'?"
    return close_names_text(name, MODELS.names())


def is_known(name: str) -> bool:
    """Whether a name is registered or parsed by a family's pattern."""
    return name in MODELS or any(pattern.value(name) for pattern in PATTERNS)


@contextlib.contextmanager
def seeded_weights(seed: int | None) -> Iterator[None]:
    """Seed the global generator with ``seed`` inside the block, if given."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _to_list(values: ChannelValues) -> list[float]:
    return [float(values)] if isinstance(values, (int, float)) else [float(v) for v in values]


def _per_channel(name: str, values: ChannelValues, channels: int) -> Tensor:
    """(C, 1, 1), from one value per channel or one for all."""
    numbers = _to_list(values)
    if len(numbers) not in (1, channels):
        raise UserError(
            f"{name} must have 1 or {channels} values, one per channel, but got {len(numbers)}"
        )
    return torch.tensor(numbers).view(-1, 1, 1).expand(channels, 1, 1).clone()
