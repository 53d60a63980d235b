"""ResNet (He et al., arXiv:1512.03385) on timm, with the usual stem for small images."""

from __future__ import annotations

from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn

from buttress.models.activations import Activation, swap_activation
from buttress.models.core import MODELS, Sizes

PAPER = "arXiv:1512.03385"

# Up to this image size the first layer keeps the resolution, as in CIFAR networks.
SMALL = 64


def small_stem(net: ResNet, in_channels: int, stride: int = 1) -> None:
    """Replaces the 7x7 stride-2 convolution and the max-pooling by one 3x3 convolution."""
    width = net.bn1.num_features
    net.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()


def _resnet(
    block: type[nn.Module],
    depths: tuple[int, ...],
    num_classes: int,
    image_size: int,
    in_channels: int,
    activation: Activation,
) -> ResNet:
    net = ResNet(block, depths, num_classes, in_channels, zero_init_last=False)
    if image_size <= SMALL:
        small_stem(net, in_channels)
    swap_activation(net, "relu", activation)
    return net


@MODELS.register(
    "resnet_50",
    paper=PAPER,
    tags=("cnn", "resnet", "published"),
    published=23.52,
    sizes=Sizes(8),
)
def resnet_50(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "relu",
) -> ResNet:
    """ResNet-50; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above."""
    return _resnet(Bottleneck, (3, 4, 6, 3), num_classes, image_size, in_channels, activation)


@MODELS.register(
    "resnet_18",
    paper=PAPER,
    tags=("cnn", "resnet", "published"),
    published=None,
    sizes=Sizes(8),
)
def resnet_18(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "relu",
) -> ResNet:
    """ResNet-18; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above."""
    return _resnet(BasicBlock, (2, 2, 2, 2), num_classes, image_size, in_channels, activation)


@MODELS.register(
    "resnet_tiny",
    paper=PAPER,
    tags=("cnn", "resnet", "tiny"),
    published=None,
    sizes=Sizes(8),
)
def resnet_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "relu",
) -> ResNet:
    """One basic block per stage, 8 to 48 channels, stride-2 stem."""
    # timm fixes a plain stem at 64 channels; a deep one has twice `stem_width`.
    net = ResNet(
        BasicBlock,
        (1, 1, 1, 1),
        num_classes,
        in_channels,
        channels=(8, 16, 32, 48),
        stem_width=4,
        stem_type="deep",
        zero_init_last=False,
    )
    small_stem(net, in_channels, stride=2)
    swap_activation(net, "relu", activation)
    return net
