"""Trained weights in a model with other classes, another image size or another patch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from timm.layers import resample_abs_pos_embed, resample_patch_embed
from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.align import align, mismatch
from buttress.models.core import Classifier
from buttress.models.weights import some

LEAST_SHARE = 0.5  # of the parameters, the classifier aside
MOST_PREFIX = 5  # tokens before those of the patches: class, distillation, registers


class Transferred(NamedTuple):
    """What became of each tensor, by its name in the network."""

    loaded: tuple[str, ...]  # as it was
    resized: tuple[str, ...]  # to another grid of tokens or another patch
    new: tuple[str, ...]  # in the model only, or of another shape: it keeps its initial values
    unused: tuple[str, ...]  # in the weights only

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for what in ("resized", "new", "unused"):
            if names := getattr(self, what):
                parts.append(f"{len(names)} {what} ({some(names)})")
        return ", ".join(parts)


def transfer(model: Classifier, state: Mapping[str, Tensor]) -> Transferred:
    """Puts weights into a model of the same architecture, in place, as far as they fit.

    Learned positions are resized bicubically, with their prefix tokens kept, and kernels that cut
    an image into patches by the pseudo-inverse (arXiv:2212.08013). A classifier with another
    number of classes and everything else of another shape keeps the values it has in the model;
    so does the normalisation, which belongs to the data.
    """
    given, own = align(state, model).net, model.net.state_dict()
    loaded = {n: v for n, v in given.items() if n in own and v.shape == own[n].shape}
    resized = {}
    for name in given.keys() & own.keys() - loaded.keys():
        value = _resize(name, given[name], own[name], model.net)
        if value is not None:
            resized[name] = value
    taken = {**loaded, **resized}
    _check_share(model, given, taken)
    for name, value in taken.items():
        if reason := mismatch(value, own[name]):
            raise UserError(f"the weights do not fit model {model.name!r}: {name} {reason}")
    model.net.load_state_dict({**own, **taken})
    new = [n for n in own if n not in taken and not n.endswith("num_batches_tracked")]
    return Transferred(
        tuple(n for n in own if n in loaded),
        tuple(n for n in own if n in resized),
        tuple(new),
        tuple(n for n in given if n not in own),
    )


def _resize(name: str, value: Tensor, own: Tensor, net: nn.Module) -> Tensor | None:
    """The tensor in the shape of the model's own, if it is one that can be resized."""
    if value.ndim != own.ndim:
        return None
    prefix = _prefix_tokens(value, own) if "pos" in name.rpartition(".")[2] else None
    if prefix is not None:
        side = math.isqrt(own.shape[1] - prefix)
        resized: Tensor = resample_abs_pos_embed(value, [side, side], num_prefix_tokens=prefix)
        return resized
    if _cuts_patches(name, net) and value.shape[:2] == own.shape[:2] and min(value.shape[2:]) > 1:
        resized = resample_patch_embed(value, list(own.shape[2:]))
        return resized
    return None


def _prefix_tokens(value: Tensor, own: Tensor) -> int | None:
    """How many tokens of (1, N, C) positions lie on no grid, if the others form a square in both.

    Two squares differ by a given small number only once, so no second answer is possible.
    """
    if own.ndim != 3 or value.shape[::2] != own.shape[::2] or own.shape[0] != 1:
        return None
    for prefix in range(MOST_PREFIX + 1):
        grids = (value.shape[1] - prefix, own.shape[1] - prefix)
        if all(n > 0 and math.isqrt(n) ** 2 == n for n in grids):
            return prefix
    return None


def _cuts_patches(name: str, net: nn.Module) -> bool:
    """Whether a tensor is the kernel of a convolution whose windows tile the image."""
    place, _, leaf = name.rpartition(".")
    layer = net.get_submodule(place)
    is_tiling = isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride
    return leaf == "weight" and is_tiling and layer.kernel_size != (1, 1)


def _check_share(model: Classifier, given: Mapping[str, Tensor], taken: Collection[str]) -> None:
    parameters = dict(model.net.named_parameters())
    left = {n: p for n, p in parameters.items() if n not in taken}
    head = {n for n, p in left.items() if _is_classifier(p, given.get(n), model)}
    sizes = {n: p.numel() for n, p in parameters.items() if n not in head}
    fitting, total = sum(sizes[n] for n in sizes if n in taken), sum(sizes.values())
    if fitting == 0 or fitting < LEAST_SHARE * total:
        raise UserError(
            f"the weights do not fit model {model.name!r}: {fitting:,} of its {total:,} parameters "
            f"could be loaded. {_misfit(left, given)}. Name the model that they were trained as; "
            "if it is this one, keep its options and its image size"
        )


def _misfit(left: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    other = [n for n in left if n in given]
    if not other:
        return f"They hold {some(given)}; the model has {some(left)}"
    largest = max(other, key=lambda name: left[name].numel())
    came, own = tuple(given[largest].shape), tuple(left[largest].shape)
    return f"{largest} has the shape {came} in them and {own} in the model"


def _is_classifier(own: Tensor, value: Tensor | None, model: Classifier) -> bool:
    is_last = own.shape[:1] == (model.num_classes,)
    return is_last and (value is None or value.shape[1:] == own.shape[1:])
