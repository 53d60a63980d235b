"""Families in stages: every member is a plan, the blocks and the channels of each stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torch import nn

from buttress.errors import UserError
from buttress.models.building_blocks import Activation, activation_layer
from buttress.models.core import MODELS, Factory, ImageSizes, find_model

# Up to this image size the first layer of a published network keeps the resolution, as usual for
# CIFAR; larger images enter through a stem that divides it by four.
MAX_SMALL_IMAGE = 64


@dataclass(frozen=True)
class StageConfig:
    """The shape of a staged network. ``depths`` and ``channels`` have one number per stage."""

    depths: tuple[int, ...]
    channels: tuple[int, ...]
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.channels):
            raise UserError(
                f"depths and channels must have one number per stage each, "
                f"but got {self.depths} and {self.channels}"
            )
        if any(width < 1 or width % self.channel_multiple for width in self.channels):
            raise UserError(
                f"channels must be positive multiples of {self.channel_multiple}, but got "
                f"{self.channels}"
            )

    @property
    def channel_multiple(self) -> int:
        """What the channels of every stage must be a multiple of."""
        return 1


ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass(frozen=True)
class ModelFamily(Generic[ConfigT]):
    """What the members of a family share; ``build`` makes a network of a plan."""

    name: str
    paper: str
    sizes: ImageSizes
    build: Callable[[ConfigT, int, int, int], nn.Module]  # num_classes, image_size, in_channels
    components: Mapping[str, str] = field(default_factory=dict)

    def factory(self, config: ConfigT) -> Factory:
        """A factory for a plan; the activation stays a choice."""

        def build(
            num_classes: int = 10,
            image_size: int = 32,
            in_channels: int = 3,
            activation: Activation = config.activation,
        ) -> nn.Module:
            config_with_options = replace(config, activation=activation)
            return self.build(config_with_options, num_classes, image_size, in_channels)

        return build

    def register_variant(
        self,
        name: str,
        config: ConfigT,
        about: str,
        *,
        published: float | None = None,
        paper: str = "",
    ) -> None:
        """Registers a member; the end of its name says whether it is mini, tiny or published."""
        suffix = name.rpartition("_")[2]
        add = MODELS.register(
            name,
            paper=paper or self.paper,
            tags=("cnn", self.name, suffix if suffix in ("mini", "tiny") else "published"),
            summary=about,
            published=published,
            sizes=self.sizes,
            components=self.components,
            plan=config,
        )
        add(self.factory(config))


def stage_config(name: str) -> StageConfig:
    """The plan of a registered model, to be changed by the rules of `shrink`."""
    config = find_model(name).metadata.get("plan")
    if config is None:
        staged_models = ", ".join(entry.name for entry in MODELS if "plan" in entry.metadata)
        raise UserError(f"model {name!r} has no plan of stages; these have one: {staged_models}")
    return config


def imagenet_stem(
    in_channels: int, width: int, act: Activation, bias: bool = False
) -> nn.Sequential:
    """The ImageNet stem: a 7x7 convolution and a max-pooling, each with stride 2."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 7, 2, 3, bias=bias),
        nn.BatchNorm2d(width),
        activation_layer(act)(),
        nn.MaxPool2d(3, 2, 1),
    )


def global_pool() -> nn.Sequential:
    """The mean over the map, as a vector."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def initialize_he(net: nn.Module) -> None:
    """Draws convolutions with variance 2 / outputs (He et al., arXiv:1502.01852); biases are 0."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)


LAST_STAGE_RATIO = 0.4


def shrink_last_stage(config: ConfigT, ratio: float = LAST_STAGE_RATIO) -> ConfigT:
    """The plan with its last stage ``ratio`` times as wide.

    The width is rounded up to what the family can build: 205 for 512, and 116 for the 288 of
    DARTS, which needs even widths. The published parameter counts fix this rounding.
    """
    return replace(
        config, channels=shrink_last_channels(config.channels, ratio, config.channel_multiple)
    )


def shrink_last_channels(
    channels: Sequence[int], ratio: float = LAST_STAGE_RATIO, multiple: int = 1
) -> tuple[int, ...]:
    """The same on bare numbers, for a network that has no plan."""
    if not 0 < ratio <= 1:
        raise UserError(f"`0 < ratio <= 1` must hold, but got ratio={ratio}")
    *others, last = channels
    # Binary fractions like 0.4 must not lift a whole number over the next step.
    steps = math.ceil(round(last * ratio / multiple, 6))
    return (*others, steps * multiple)


def scale_widths(config: ConfigT, factor: float) -> ConfigT:
    """The plan with all its stages ``factor`` times as wide; the stem stays."""
    scaled = (max(1, round(width * factor / config.channel_multiple)) for width in config.channels)
    return replace(config, channels=tuple(steps * config.channel_multiple for steps in scaled))
