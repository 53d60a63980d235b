"""VGG: "Very Deep Convolutional Networks" (Simonyan & Zisserman, arXiv:1409.1556), CIFAR form.

The layers are torchvision's with batch norm: 3x3 convolutions with bias and a max-pooling at the
end of each of five stages. One linear layer follows. The -R form is that of arXiv:2110.03825.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torchvision.models.vgg import make_layers

from buttress.models.activations import activation_layer
from buttress.models.core import Sizes
from buttress.models.shrink import shrink_last_stage
from buttress.models.staged import Family, Stages, draw_weights, global_pool

STAGES_PAPER = "arXiv:2110.03825"


@dataclass(frozen=True)
class Plan(Stages):
    """``depths`` are convolutions per stage."""

    @property
    def layers(self) -> list[int | str]:
        """The plan as torchvision writes it."""
        listed: list[int | str] = []
        for depth, width in zip(self.depths, self.channels, strict=True):
            listed += [*[width] * depth, "M"]
        return listed


class VGG(nn.Module):
    """The network of a plan: stages of blocks, the last block of each with the pooling."""

    def __init__(self, plan: Plan, num_classes: int, image_size: int, in_channels: int) -> None:
        super().__init__()
        layers = list(make_layers(plan.layers, batch_norm=True))
        layers[0] = nn.Conv2d(in_channels, plan.channels[0], 3, padding=1)
        self.stages = _grouped(layers, plan)
        self.pool = global_pool()
        self.head = nn.Linear(plan.channels[-1], num_classes)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(x)))


def _grouped(layers: list[nn.Module], plan: Plan) -> nn.Sequential:
    """The layers by stages and blocks of convolution, norm and activation."""
    stages: list[list[nn.Sequential]] = [[]]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            if len(stages[-1]) == plan.depths[len(stages) - 1]:
                stages.append([])
            stages[-1].append(nn.Sequential())
        stages[-1][-1].append(
            activation_layer(plan.activation)() if isinstance(layer, nn.ReLU) else layer
        )
    return nn.Sequential(*(nn.Sequential(*blocks) for blocks in stages))


FAMILY = Family(
    "vgg", "arXiv:1409.1556", Sizes(32), VGG, components={r"stages\.0\.0\.0\..*": "stem"}
)

VGG_11 = Plan((1, 1, 2, 2, 2), (64, 128, 256, 512, 512))
VGG_11_MINI = Plan((1, 1, 2, 2, 2), (12, 24, 48, 96, 96))

FAMILY.register(
    "vgg_16",
    Plan((2, 2, 3, 3, 3), (64, 128, 256, 512, 512)),
    "VGG-16 with batch norm and one linear layer",
    published=14.72,
)
FAMILY.register(
    "vgg_mini",
    Plan((2, 2, 3, 3, 3), (8, 16, 32, 64, 64)),
    "VGG-16 with an eighth of the channels",
)
FAMILY.register(
    "vgg_tiny",
    Plan((1, 1, 1, 1, 1), (8, 16, 24, 32, 48)),
    "one convolution per stage, 8 to 48 channels",
)
FAMILY.register(
    "vgg_11",
    VGG_11,
    "VGG-11 with batch norm and one linear layer",
    published=9.23,
)
FAMILY.register(
    "vgg_11_r",
    shrink_last_stage(VGG_11),
    "VGG-11-R: VGG-11 with a narrow last stage",
    published=5.83,
    paper=STAGES_PAPER,
)
FAMILY.register("vgg_11_mini", VGG_11_MINI, "VGG-11 with 3/16 of the channels")
FAMILY.register(
    "vgg_11_r_mini",
    shrink_last_stage(VGG_11_MINI),
    "vgg_11_mini with a narrow last stage",
    paper=STAGES_PAPER,
)
