r"""Lipschitz bounds for Gaussian weights of RobustWRN (arXiv:2110.03825, theorems 1 and 2).

Huang et al., "Exploring Architectural Ingredients of Adversarially Robust Deep Neural Networks".
Both bound the expected norm of a layer with independent weights :math:`N(0, \sigma^2)` in L2, and
the model by the product over its layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

ConvolutionLayer = nn.Conv1d | nn.Conv2d | nn.Conv3d


def dense_bound(inputs: int, outputs: int, sigma: float) -> float:
    r"""Theorem 1: :math:`(\sqrt{h_{j-1}} + \sqrt{h_j}) \sigma_j`."""
    return (math.sqrt(inputs) + math.sqrt(outputs)) * sigma


def convolution_bound(
    inputs: int, outputs: int, size: Sequence[int], kernel: Sequence[int], sigma: float
) -> float:
    r"""Theorem 2: :math:`(m_j \sqrt{W_{j-1}} + (m_j - k_j + 1) \sqrt{W_j}) \sigma_j`.

    ``size`` is m_j in each direction and counts the padding: then m_j - k_j + 1 is the size of
    the output. Without it the formula is no bound for padded layers on small maps, where most of
    the kernel is used at every place.
    """
    input_size = math.prod(size)
    output_size = math.prod(max(0, m - k + 1) for m, k in zip(size, kernel, strict=True))
    return (math.sqrt(input_size * inputs) + math.sqrt(output_size * outputs)) * sigma


def gaussian_bound(layer: nn.Linear | ConvolutionLayer, shape: Sequence[int]) -> float:
    """The bound of a layer whose input has this shape (without the batch), from its own weights.

    Sigma is the root mean square of the weights, since the theorems want a mean of zero. A
    grouped convolution is a full one with weights taken out, which lowers no bound; so is one
    with strides. Trained weights are not independent, so a trained layer may exceed the figure.
    """
    sigma = float(layer.weight.detach().double().square().mean().sqrt())
    if isinstance(layer, nn.Linear):
        return dense_bound(layer.in_features, layer.out_features, sigma)
    spans = [d * (k - 1) + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    inner = shape[1:]
    if isinstance(layer.padding, str):
        size = [m + (k - 1) * (layer.padding == "same") for m, k in zip(inner, spans, strict=True)]
    else:
        size = [m + 2 * p for m, p in zip(inner, layer.padding, strict=True)]
    return convolution_bound(layer.in_channels, layer.out_channels, size, spans, sigma)
