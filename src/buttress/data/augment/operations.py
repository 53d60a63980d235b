"""The operations that policies choose from, each applied at once to all images that drew it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from buttress.data.augment import colour, geometry, tones

GREY = 128  # comes in from outside where an image moves

# Each takes uint8 images (N, C, H, W) and one number per image.
LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda x, _: tones.autocontrast(x),
    "equalise": lambda x, _: tones.equalise(x),
    "invert": lambda x, _: tones.invert(x),
    "posterise": tones.posterise,
    "solarise": tones.solarise,
    "solarise_add": tones.solarise_add,
    "brightness": colour.brightness,
    "contrast": colour.contrast,
    "saturation": colour.saturation,
    "sharpness": colour.sharpness,
    "hue": colour.hue,
}
# Each gives the maps (N, 6) that move images of a size by one number per image.
MOVES: dict[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {
    "shear_x": geometry.shear_x,
    "shear_y": geometry.shear_y,
    "translate_x": geometry.translate_x,
    "translate_y": geometry.translate_y,
    "rotate": geometry.rotate,
}
OPERATIONS = (*LEVELS, *MOVES)


def apply(x: Tensor, names: Sequence[str | None], amounts: Tensor) -> Tensor:
    """Each uint8 image under the operation named for it, or as it is where that is None.

    Args:
        x: (N, C, H, W).
        names: N keys of `OPERATIONS`.
        amounts: (N,) on the CPU; what it means depends on the operation.
    """
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name is not None:
            groups.setdefault(name, []).append(row)
    out = x.clone()
    for name, members in groups.items():
        if name in LEVELS:
            rows = torch.tensor(members)
            here = rows.to(x.device)
            changed = LEVELS[name](x.index_select(0, here), amounts[rows])
            out.index_copy_(0, here, changed)
    moved = {name: torch.tensor(groups[name]) for name in groups if name in MOVES}
    if moved:
        size = x.shape[2], x.shape[3]
        matrices = torch.cat([MOVES[name](amounts[rows], size) for name, rows in moved.items()])
        here = torch.cat(list(moved.values())).to(x.device)
        out.index_copy_(0, here, geometry.affine(x.index_select(0, here), matrices, GREY))
    return out
