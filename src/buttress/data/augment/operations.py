"""The operations that policies choose from, each applied at once to all images that drew it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from buttress.data.augment import color, geometry
from buttress.system.rng import SampleRNG

FILL_GRAY = 128  # fill value where an image is shifted

# Each takes uint8 images (N, C, H, W) and one number per image.
COLOR_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda x, _: color.autocontrast(x),
    "equalize": lambda x, _: color.equalize(x),
    "invert": lambda x, _: color.invert(x),
    "posterize": color.posterize,
    "solarize": color.solarize,
    "solarize_add": color.solarize_add,
    "brightness": color.adjust_brightness,
    "contrast": color.adjust_contrast,
    "saturation": color.adjust_saturation,
    "sharpness": color.adjust_sharpness,
    "hue": color.adjust_hue,
}
# Each gives the maps (N, 6) that move images of a size by one number per image.
GEOMETRIC_OPERATIONS: dict[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {
    "shear_x": geometry.shear_x,
    "shear_y": geometry.shear_y,
    "translate_x": geometry.translate_x,
    "translate_y": geometry.translate_y,
    "rotate": geometry.rotate,
}
OPERATIONS = (*COLOR_OPERATIONS, *GEOMETRIC_OPERATIONS)


def apply_operations(x: Tensor, names: Sequence[str | None], amounts: Tensor) -> Tensor:
    """Each uint8 image under the operation named for it, or as it is where that is None.

    Args:
        x: (N, C, H, W).
        names: N keys of `OPERATIONS`.
        amounts: (N,) on the CPU; what it means depends on the operation.
    """
    groups: dict[str | None, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault("move" if name in GEOMETRIC_OPERATIONS else name, []).append(row)
    pieces = []
    for group, members in groups.items():
        rows = torch.tensor(members)
        piece = x.index_select(0, rows.to(x.device))
        if group in COLOR_OPERATIONS:
            piece = COLOR_OPERATIONS[group](piece, amounts[rows])
        elif group is not None:
            piece = _apply_geometric(piece, [names[row] for row in members], amounts[rows])
        pieces.append(piece)
    # Putting pieces together and rows back in order is far cheaper than writing into rows.
    order = torch.tensor([row for members in groups.values() for row in members]).argsort()
    return torch.cat(pieces).index_select(0, order.to(x.device))


def _apply_geometric(x: Tensor, names: Sequence[str | None], amounts: Tensor) -> Tensor:
    """All geometric operations at once: each image has a map of its own."""
    size = x.shape[2], x.shape[3]
    matrices = torch.empty(len(x), 6, dtype=torch.float64)
    for name, maps in GEOMETRIC_OPERATIONS.items():
        rows = torch.tensor([row for row, other in enumerate(names) if other == name]).long()
        matrices[rows] = maps(amounts[rows], size)
    return geometry.apply_affine(x, matrices, FILL_GRAY)


def color_jitter(
    x: Tensor,
    streams: SampleRNG,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Each quality of uint8 images times a factor from 1 - s to 1 + s; hue turned by up to ``hue``.

    As in torchvision: factors are drawn evenly and never below zero, and a turn of 1 is the whole
    circle of colors.
    """
    strengths = {
        "brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue,
    }  # fmt: skip
    active = [name for name, strength in strengths.items() if strength]
    count = len(active)
    fractions = streams.draw_fractions(2 * count, "jitter")
    order = fractions[:, count:].argsort(1)  # (N, count) which comes first, second, ...
    low = [-hue if name == "hue" else max(0.0, 1 - strengths[name]) for name in active]
    high = [hue if name == "hue" else 1 + strengths[name] for name in active]
    span = torch.tensor(high, dtype=torch.float64) - torch.tensor(low, dtype=torch.float64)
    amounts = torch.tensor(low, dtype=torch.float64) + span * fractions[:, :count].cpu()
    for operation_index in order.cpu().unbind(1):
        names = [active[i] for i in operation_index.tolist()]
        x = apply_operations(x, names, amounts.gather(1, operation_index.unsqueeze(1)).squeeze(1))
    return x
