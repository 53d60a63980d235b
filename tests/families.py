"""Families that an analysis has no meaning for; one that is added later is in none of these."""

from __future__ import annotations

# No softmax over places: convolutions and mixers, and XCiT, which attends between channels.
WITHOUT_MAPS = {
    "darts_tiny", "densenet_tiny", "mlp_mixer_tiny", "poolformer_tiny", "preact_resnet_tiny",
    "resnet_tiny", "resnext_tiny", "vgg_tiny", "wrn_tiny", "xcit_tiny",
}  # fmt: skip
