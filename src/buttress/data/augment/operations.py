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
    groups: dict[str | None, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault("move" if name in MOVES else name, []).append(row)
    pieces = []
    for group, members in groups.items():
        rows = torch.tensor(members)
        piece = x.index_select(0, rows.to(x.device))
        if group in LEVELS:
            piece = LEVELS[group](piece, amounts[rows])
        elif group is not None:
            piece = _move(piece, [names[row] for row in members], amounts[rows])
        pieces.append(piece)
    # Putting pieces together and rows back in order is far cheaper than writing into rows.
    order = torch.tensor([row for members in groups.values() for row in members]).argsort()
    return torch.cat(pieces).index_select(0, order.to(x.device))


def _move(x: Tensor, names: Sequence[str | None], amounts: Tensor) -> Tensor:
    """All geometric operations at once: each image has a map of its own."""
    size = x.shape[2], x.shape[3]
    matrices = torch.empty(len(x), 6, dtype=torch.float64)
    for name, maps in MOVES.items():
        rows = torch.tensor([row for row, other in enumerate(names) if other == name]).long()
        matrices[rows] = maps(amounts[rows], size)
    return geometry.affine(x, matrices, GREY)
