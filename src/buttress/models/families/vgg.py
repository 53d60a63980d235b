"""VGG: "Very Deep Convolutional Networks" (Simonyan & Zisserman, arXiv:1409.1556), CIFAR form.

The layers are torchvision's with batch norm: 3x3 convolutions with bias and a max-pooling at the
end of each of five stages. One linear layer follows. The -R form is that of arXiv:2110.03825.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torchvision.models.vgg import make_layers

from buttress.models.building_blocks import activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import (
    ROBUST_WRN_PAPER,
    InputShape,
    ModelFamily,
    StageConfig,
    Variant,
    global_pool,
    initialize_he,
    shrink_last_stage,
)


@dataclass(frozen=True)
class VGGConfig(StageConfig):
    """``depths`` are convolutions per stage."""

    @property
    def torchvision_layers(self) -> list[int | str]:
        """The stages as torchvision writes it."""
        layer_list: list[int | str] = []
        for depth, width in zip(self.depths, self.channels, strict=True):
            layer_list += [*[width] * depth, "M"]
        return layer_list


class VGG(nn.Module):
    """The network of a configuration: stages of blocks, the last block of each with the pooling."""

    def __init__(self, config: VGGConfig, shape: InputShape) -> None:
        super().__init__()
        layers = list(make_layers(config.torchvision_layers, batch_norm=True))
        layers[0] = nn.Conv2d(shape.in_channels, config.channels[0], 3, padding=1)
        self.stages = _group_into_stages(layers, config)
        self.pool = global_pool()
        self.head = nn.Linear(config.channels[-1], shape.num_classes)
        initialize_he(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(x)))


def _group_into_stages(layers: list[nn.Module], config: VGGConfig) -> nn.Sequential:
    """The layers by stages and blocks of convolution, norm and activation."""
    stages: list[list[nn.Sequential]] = [[]]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            if len(stages[-1]) == config.depths[len(stages) - 1]:
                stages.append([])
            stages[-1].append(nn.Sequential())
        stages[-1][-1].append(
            activation_layer(config.activation)() if isinstance(layer, nn.ReLU) else layer
        )
    return nn.Sequential(*(nn.Sequential(*blocks) for blocks in stages))


VGG_FAMILY = ModelFamily(
    "vgg", "arXiv:1409.1556", "cnn", ImageSizes(32), VGG,
    components={r"stages\.0\.0\.0\..*": "stem"},
)  # fmt: skip

VGG_11 = VGGConfig((1, 1, 2, 2, 2), (64, 128, 256, 512, 512))
VGG_11_MINI = VGGConfig((1, 1, 2, 2, 2), (12, 24, 48, 96, 96))

VGG_FAMILY.register(
    Variant("vgg_16", VGGConfig((2, 2, 3, 3, 3), (64, 128, 256, 512, 512)),
            "VGG-16 with batch norm and one linear layer", published=14.72),
    Variant("vgg_mini", VGGConfig((2, 2, 3, 3, 3), (8, 16, 32, 64, 64)),
            "VGG-16 with an eighth of the channels"),
    Variant("vgg_tiny", VGGConfig((1, 1, 1, 1, 1), (8, 16, 24, 32, 48)),
            "one convolution per stage, 8 to 48 channels"),
    Variant("vgg_11", VGG_11, "VGG-11 with batch norm and one linear layer", published=9.23,
            is_rounded=True),
    Variant("vgg_11_r", shrink_last_stage(VGG_11), "VGG-11-R: VGG-11 with a narrow last stage",
            published=5.83, is_rounded=True, paper=ROBUST_WRN_PAPER),
    Variant("vgg_11_mini", VGG_11_MINI, "VGG-11 with 3/16 of the channels"),
    Variant("vgg_11_r_mini", shrink_last_stage(VGG_11_MINI), "vgg_11_mini with a narrow last stage",
            paper=ROBUST_WRN_PAPER),
)  # fmt: skip
