"""Families as tables of variants, and rules that change the stages of a configuration."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, get_type_hints

from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.building_blocks import Activation, activation_layer
from buttress.models.core import MODELS, Factory, ImageSizes, find_model
from buttress.models.parts import Component

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ModelCategory = Literal["cnn", "transformer", "hybrid"]
Attention = Literal["tokens", "channels", "none"]
ROBUST_WRN_PAPER = "arXiv:2110.03825"  # of the -R rule, `shrink_last_stage`
MAX_SMALL_IMAGE = 64


class InputShape(NamedTuple):
    """What a network takes and gives."""

    num_classes: int = 10
    image_size: int = 32
    in_channels: int = 3

    @property
    def is_small(self) -> bool:
        """Whether the first layer of a published network keeps the resolution, as usual for CIFAR.

        Larger images enter through a stem that divides it by four.
        """
        return self.image_size <= MAX_SMALL_IMAGE


@dataclass(frozen=True)
class StageConfig:
    """Configuration of a staged model. ``depths`` and ``channels`` have one number per stage."""

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
        """The number that the channels of every stage must be a multiple of."""
        return 1


ConfigT = TypeVar("ConfigT", bound="DataclassInstance")
StageConfigT = TypeVar("StageConfigT", bound=StageConfig)


@dataclass(frozen=True)
class Variant(Generic[ConfigT]):
    """One row of a family's table: a name, its configuration, and what differs from the family."""

    name: str  # ends with _mini or _tiny, or else it is a published size
    config: ConfigT
    summary: str
    published: float | None = None  # parameters in millions as printed
    is_rounded: bool = False  # the printed count is rounded; otherwise digits are cut off
    tolerance: float = 0.0  # largest relative difference from the printed count; 0 is exact
    paper: str = ""
    image_sizes: ImageSizes | None = None
    category: ModelCategory | None = None
    options: tuple[str, ...] | None = None
    size_note: str = ""  # why a mini is larger than minis usually are


@dataclass(frozen=True)
class ModelFamily(Generic[ConfigT]):
    """What the variants of a family share; ``build`` makes the network of a configuration.

    A configuration may have ``init``: steps that change the weights of the new network in place.
    """

    name: str  # that of its file, and a tag of all its variants
    paper: str
    category: ModelCategory
    image_sizes: ImageSizes
    build: Callable[[ConfigT, InputShape], nn.Module]
    options: tuple[str, ...] = ("activation",)  # fields of the configuration that users may set
    attention: Attention = "tokens"  # what attends to each other; "none" in every cnn
    components: Mapping[str, Component] = field(default_factory=dict)
    block_pattern: str = ""
    published_shape: Mapping[str, int] = field(default_factory=dict)  # if not 10 classes of 32x32

    def register(self, *variants: Variant[ConfigT]) -> None:
        """Registers the variants; the end of a name says whether it is mini, tiny or published."""
        for variant in variants:
            suffix = variant.name.rpartition("_")[2]
            category = variant.category or self.category
            add = MODELS.register(
                variant.name,
                paper=variant.paper or self.paper,
                tags=(category, self.name, suffix if suffix in ("mini", "tiny") else "published"),
                summary=variant.summary,
                config=variant.config,
                sizes=variant.image_sizes or self.image_sizes,
                components=self.components,
                blocks=self.block_pattern,
                attention="none" if category == "cnn" else self.attention,
                published=variant.published,
                published_shape=self.published_shape,
                is_rounded=variant.is_rounded,
                tolerance=variant.tolerance,
                size_note=variant.size_note,
            )
            add(self.factory(variant.config, variant.options))

    def factory(self, config: ConfigT, options: tuple[str, ...] | None = None) -> Factory:
        """A factory for a configuration; ``options`` of its fields are typed parameters."""
        options = self.options if options is None else options
        hints = get_type_hints(type(config))
        parameters = {
            **{name: (int, default) for name, default in InputShape._field_defaults.items()},
            **{name: (hints[name], getattr(config, name)) for name in options},
        }
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature(
            [
                inspect.Parameter(name, kind, default=default, annotation=hint)
                for name, (hint, default) in parameters.items()
            ]
        )

        def build(*args: Any, **kwargs: Any) -> nn.Module:
            bound = signature.bind(*args, **kwargs)  # refuses whatever the signature does not have
            bound.apply_defaults()
            shape = InputShape(*(bound.arguments.pop(name) for name in InputShape._fields))
            net = self.build(replace(config, **bound.arguments), shape)
            for step in getattr(config, "init", ()):
                step(net)
            return net

        build.__signature__ = signature  # type: ignore[attr-defined]
        build.__annotations__ = {name: hint for name, (hint, _) in parameters.items()}
        return build


def stage_config(name: str) -> StageConfig:
    """The configuration of a registered model in stages, to be changed by the rules below."""
    config = find_model(name).metadata.get("config")
    if not isinstance(config, StageConfig):
        staged_models = ", ".join(
            entry.name for entry in MODELS if isinstance(entry.metadata.get("config"), StageConfig)
        )
        raise UserError(
            f"model {name!r} has no stage configuration; these have one: {staged_models}"
        )
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


def shrink_last_stage(config: StageConfigT, ratio: float = LAST_STAGE_RATIO) -> StageConfigT:
    """The configuration with its last stage ``ratio`` times as wide.

    The width is rounded up to what the family can build: 205 for 512, and 116 for the 288 of
    DARTS, which needs even widths. The published parameter counts fix this rounding.
    """
    return replace(
        config, channels=shrink_last_channels(config.channels, ratio, config.channel_multiple)
    )


def shrink_last_channels(
    channels: Sequence[int], ratio: float = LAST_STAGE_RATIO, multiple: int = 1
) -> tuple[int, ...]:
    """The same on bare numbers, for a network that has no configuration."""
    if not 0 < ratio <= 1:
        raise UserError(f"`0 < ratio <= 1` must hold, but got ratio={ratio}")
    *others, last = channels
    # Rounding errors of fractions like 0.4 must not round an integer up.
    steps = math.ceil(round(last * ratio / multiple, 6))
    return (*others, steps * multiple)


def scale_widths(config: StageConfigT, factor: float) -> StageConfigT:
    """The configuration with all its stages ``factor`` times as wide; the stem stays."""
    scaled = (max(1, round(width * factor / config.channel_multiple)) for width in config.channels)
    return replace(config, channels=tuple(steps * config.channel_multiple for steps in scaled))


class ResidualNetwork(nn.Module):
    """A stem, stages of residual blocks, pooling and a linear classifier.

    The first block of each stage but the first halves the map; a block puts out ``expansion`` times
    the channels of its stage. A norm and an activation may follow the last stage.
    """

    def __init__(
        self,
        stem: nn.Module,
        stem_channels: int,
        block: Callable[[int, int, int, StageConfigT], nn.Module],
        config: StageConfigT,
        shape: InputShape,
        *,
        expansion: int = 1,
        has_last_norm: bool = False,
    ) -> None:
        super().__init__()
        stages, width = [], stem_channels
        for index, (depth, channels) in enumerate(zip(config.depths, config.channels, strict=True)):
            blocks = []
            for position in range(depth):
                blocks.append(block(width, channels, 2 if index and not position else 1, config))
                width = expansion * channels
            stages.append(nn.Sequential(*blocks))
        self.stem = stem
        self.stages = nn.Sequential(*stages)
        if has_last_norm:
            self.norm = nn.BatchNorm2d(width)
            self.act = activation_layer(config.activation)()
        self.has_last_norm = has_last_norm
        self.pool = global_pool()
        self.head = nn.Linear(width, shape.num_classes)
        initialize_he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        if self.has_last_norm:
            x = self.act(self.norm(x))
        return self.head(self.pool(x))
