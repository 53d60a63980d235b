"""State dicts of the authors of RobustWRN (arXiv:2110.03825): recognition, names and shapes.

Their WideResNet differs from ours in the names of its tensors only; its inputs are [0, 1] images
without normalization.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from buttress.models.factory import Shape

_STEM = re.compile(r"(.*?)stem_conv\.(?:0\.)?weight")  # the prefix is that of a wrapper
_BLOCK = r"blocks\.(\d+)\.layer\.(\d+)\."
_RENAMING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"stem_conv\.(.+)", r"stem.\1"),
        (_BLOCK + r"bn([12])\.(\w+)", r"stages.\1.\2.norm\3.\4"),
        (_BLOCK + r"conv([12])\.(\w+)", r"stages.\1.\2.conv\3.\4"),
        (_BLOCK + r"convShortcut\.(\w+)", r"stages.\1.\2.shortcut.\3"),
        (r"bn1\.(\w+)", r"norm.\1"),
        (r"fc\.(\w+)", r"head.\1"),
    )
]


def rename_robust_wrn(weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the authors' tensors under our names, or None for any other state dict."""
    stem = next(filter(None, map(_STEM.fullmatch, weights)), None)
    if stem is None:
        return None
    renamed = {}
    for name, value in weights.items():
        new_name = _rename(name.removeprefix(stem[1])) if name.startswith(stem[1]) else name
        if new_name is None:
            return None
        renamed[new_name] = value
    return renamed if "stages.0.0.conv1.weight" in renamed else None


def _rename(name: str) -> str | None:
    matches = ((pattern.fullmatch(name), replacement) for pattern, replacement in _RENAMING)
    return next((match.expand(new) for match, new in matches if match), None)


def infer_robust_wrn(weights: Mapping[str, Tensor]) -> tuple[str, Shape] | None:
    """Infer ``wrn_dA-B-C_wX-Y-Z``, classes and channels from an authors' state dict, if it is one.

    Not from one whose widths are no multiples of 16, 32 and 64: such a model has no name.
    """
    renamed = rename_robust_wrn(weights)
    if renamed is None or "stem.weight" not in renamed or "head.weight" not in renamed:
        return None
    depths, factors = [], []
    for stage in range(3):
        blocks = [n for n in renamed if re.fullmatch(rf"stages\.{stage}\.\d+\.conv2\.weight", n)]
        if not blocks:
            return None
        factor, remainder = divmod(len(renamed[blocks[0]]), 16 * 2**stage)
        if remainder:
            return None
        depths.append(len(blocks))
        factors.append(factor)
    name = f"wrn_d{'-'.join(map(str, depths))}_w{'-'.join(map(str, factors))}"
    shape = {
        "num_classes": len(renamed["head.weight"]),
        "in_channels": renamed["stem.weight"].shape[1],
    }
    return name, shape
