"""Families in stages: every member is a plan, the blocks and the channels of each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torch import nn

from buttress.errors import UserError
from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, Factory, Sizes, find_model

# Up to this image size the first layer of a published network keeps the resolution, as usual for
# CIFAR; larger images enter through a stem that divides it by four.
SMALL = 64


@dataclass(frozen=True)
class Stages:
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
        if any(width < 1 or width % self.multiple for width in self.channels):
            raise UserError(
                f"channels must be positive multiples of {self.multiple}, but got {self.channels}"
            )

    @property
    def multiple(self) -> int:
        """What the channels of every stage must be a multiple of."""
        return 1


Plan = TypeVar("Plan", bound=Stages)


@dataclass(frozen=True)
class Family(Generic[Plan]):
    """What the members of a family share; ``build`` makes a network of a plan."""

    name: str
    paper: str
    sizes: Sizes
    build: Callable[[Plan, int, int, int], nn.Module]  # num_classes, image_size, in_channels
    components: Mapping[str, str] = field(default_factory=dict)

    def factory(self, plan: Plan) -> Factory:
        """A factory for a plan; the activation stays a choice."""

        def build(
            num_classes: int = 10,
            image_size: int = 32,
            in_channels: int = 3,
            activation: Activation = plan.activation,
        ) -> nn.Module:
            chosen = replace(plan, activation=activation)
            return self.build(chosen, num_classes, image_size, in_channels)

        return build

    def register(
        self,
        name: str,
        plan: Plan,
        about: str,
        *,
        published: float | None = None,
        paper: str = "",
    ) -> None:
        """Registers a member; the end of its name says whether it is mini, tiny or published."""
        end = name.rpartition("_")[2]
        add = MODELS.register(
            name,
            paper=paper or self.paper,
            tags=("cnn", self.name, end if end in ("mini", "tiny") else "published"),
            about=about,
            published=published,
            sizes=self.sizes,
            components=self.components,
            plan=plan,
        )
        add(self.factory(plan))


def plan_of(name: str) -> Stages:
    """The plan of a registered model, to be changed by the rules of `shrink`."""
    plan = find_model(name).extra.get("plan")
    if plan is None:
        known = ", ".join(entry.name for entry in MODELS if "plan" in entry.extra)
        raise UserError(f"model {name!r} has no plan of stages; these have one: {known}")
    return plan


def large_stem(in_channels: int, width: int, act: Activation, bias: bool = False) -> nn.Sequential:
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


def draw_weights(net: nn.Module) -> None:
    """Draws convolutions with variance 2 / outputs (He et al., arXiv:1502.01852); biases are 0."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)
