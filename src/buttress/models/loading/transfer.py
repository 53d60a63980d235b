"""Transfer of trained weights to a model with other classes, image size or patch size."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from timm.layers import resample_abs_pos_embed, resample_patch_embed
from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.core import Classifier
from buttress.models.loading.align import align_state_dict, value_mismatch
from buttress.models.loading.weight_file import abbreviate

MIN_FITTING_FRACTION = 0.5  # of the parameters, the classifier aside
MAX_PREFIX_TOKENS = 5  # tokens before those of the patches: class, distillation, registers


class TransferReport(NamedTuple):
    """How each tensor was transferred, by its name in the model."""

    loaded: tuple[str, ...]  # as it was
    resized: tuple[str, ...]  # to another grid of tokens or another patch
    initialized: tuple[str, ...]  # in the model only, or of another shape: as the model had it
    unused: tuple[str, ...]  # in the weights only

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for group in ("resized", "initialized", "unused"):
            if names := getattr(self, group):
                parts.append(f"{len(names)} {group} ({abbreviate(names)})")
        return ", ".join(parts)


def transfer_weights(model: Classifier, state: Mapping[str, Tensor]) -> TransferReport:
    """Load matching weights into a model of the same architecture, in place.

    Learned positions are resized bicubically, with their prefix tokens kept, and kernels that cut
    an image into patches by the pseudo-inverse (arXiv:2212.08013). A classifier with another
    number of classes and everything else of another shape keeps the values it has in the model;
    so does the normalization, which belongs to the data.
    """
    source_weights, target_weights = align_state_dict(state, model).net, model.net.state_dict()
    loaded = {
        n: v
        for n, v in source_weights.items()
        if n in target_weights and v.shape == target_weights[n].shape
    }
    resized = {}
    for name in source_weights.keys() & target_weights.keys() - loaded.keys():
        value = _resize_tensor(name, source_weights[name], target_weights[name], model.net)
        if value is not None:
            resized[name] = value
    new_weights = {**loaded, **resized}
    _check_fitting_fraction(model, source_weights, new_weights)
    for name, value in new_weights.items():
        if reason := value_mismatch(value, target_weights[name]):
            raise UserError(f"the weights do not match model {model.name!r}: {name} {reason}")
    model.net.load_state_dict({**target_weights, **new_weights})
    new = [
        n for n in target_weights if n not in new_weights and not n.endswith("num_batches_tracked")
    ]
    return TransferReport(
        tuple(n for n in target_weights if n in loaded),
        tuple(n for n in target_weights if n in resized),
        tuple(new),
        tuple(n for n in source_weights if n not in target_weights),
    )


def _resize_tensor(name: str, value: Tensor, target: Tensor, net: nn.Module) -> Tensor | None:
    """The tensor in the shape of the model's own, if it is one that can be resized."""
    if value.ndim != target.ndim:
        return None
    prefix = _prefix_tokens(value, target) if "pos" in name.rpartition(".")[2] else None
    if prefix is not None:
        side = math.isqrt(target.shape[1] - prefix)
        resized: Tensor = resample_abs_pos_embed(value, [side, side], num_prefix_tokens=prefix)
        return resized
    if (
        _is_patch_embedding(name, net)
        and value.shape[:2] == target.shape[:2]
        and min(value.shape[2:]) > 1
    ):
        resized = resample_patch_embed(value, list(target.shape[2:]))
        return resized
    return None


def _prefix_tokens(value: Tensor, target: Tensor) -> int | None:
    """How many tokens of (1, N, C) positions lie on no grid, if the others form a square in both.

    Two squares differ by a given small number only once, so no second answer is possible.
    """
    if target.ndim != 3 or value.shape[::2] != target.shape[::2] or target.shape[0] != 1:
        return None
    for prefix in range(MAX_PREFIX_TOKENS + 1):
        grids = (value.shape[1] - prefix, target.shape[1] - prefix)
        if all(n > 0 and math.isqrt(n) ** 2 == n for n in grids):
            return prefix
    return None


def _is_patch_embedding(name: str, net: nn.Module) -> bool:
    """Whether a tensor is the kernel of a convolution whose windows tile the image."""
    module_name, _, leaf = name.rpartition(".")
    layer = net.get_submodule(module_name)
    is_tiling = isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride
    return leaf == "weight" and is_tiling and layer.kernel_size != (1, 1)


def _check_fitting_fraction(
    model: Classifier, source_weights: Mapping[str, Tensor], new_weights: Collection[str]
) -> None:
    parameters = dict(model.net.named_parameters())
    not_loaded = {n: p for n, p in parameters.items() if n not in new_weights}
    head = {n for n, p in not_loaded.items() if _is_classifier(p, source_weights.get(n), model)}
    sizes = {n: p.numel() for n, p in parameters.items() if n not in head}
    fitting, total = sum(sizes[n] for n in sizes if n in new_weights), sum(sizes.values())
    if fitting == 0 or fitting < MIN_FITTING_FRACTION * total:
        raise UserError(
            f"the weights do not match model {model.name!r}: only {fitting:,} of {total:,} "
            f"parameters can be loaded. {_describe_mismatch(not_loaded, source_weights)}. "
            "Check --model, its options and image_size"
        )


def _describe_mismatch(
    not_loaded: Mapping[str, Tensor], source_weights: Mapping[str, Tensor]
) -> str:
    common_names = [n for n in not_loaded if n in source_weights]
    if not common_names:
        return f"They contain {abbreviate(source_weights)}; the model has {abbreviate(not_loaded)}"
    largest = max(common_names, key=lambda name: not_loaded[name].numel())
    shapes = [tuple(weights[largest].shape) for weights in (source_weights, not_loaded)]
    return f"{largest} has shape {shapes[0]} in the weights, but {shapes[1]} in the model"


def _is_classifier(target: Tensor, value: Tensor | None, model: Classifier) -> bool:
    is_last = target.shape[:1] == (model.num_classes,)
    return is_last and (value is None or value.shape[1:] == target.shape[1:])


def describe_changes(old: Classifier, new: Classifier, transfer: TransferReport) -> tuple[str, ...]:
    """Say in words what differs between the model of the weights and the one they go into.

    Image size, classes, patches and strides of convolutions, and learned positions.
    """
    changes = []
    if old.image_size != new.image_size:
        sizes = (f"{model.image_size}x{model.image_size}" for model in (new, old))
        changes.append("images have {} pixels instead of {}".format(*sizes))
    if old.num_classes != new.num_classes:
        changes.append(
            f"the classifier is new, for {new.num_classes} classes instead of {old.num_classes}"
        )
    changes += _convolution_changes(old.net, new.net)
    return (*changes, *_position_changes(old.net.state_dict(), new.net.state_dict(), transfer))


def _position_changes(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], transfer: TransferReport
) -> Iterator[str]:
    for name in (n for n in old if "pos" in n.rpartition(".")[2] and n in new):
        if old[name].shape == new[name].shape:
            continue
        how = "resized bicubically" if name in transfer.resized else "new"
        prefix = _prefix_tokens(old[name], new[name])
        if prefix is None:
            shapes = (str(tuple(weights[name].shape)) for weights in (new, old))
        else:
            sides = (math.isqrt(weights[name].shape[1] - prefix) for weights in (new, old))
            shapes = (f"{side}x{side} tokens" for side in sides)
        yield "positions {} have {} instead of {}: {}".format(name, *shapes, how)


def _convolution_changes(old: nn.Module, new: nn.Module) -> list[str]:
    """The convolutions with another stride, those that cut an image into patches by their patch."""
    changes, old_layers = [], dict(old.named_modules())
    for name, layer in new.named_modules():
        before = old_layers.get(name)
        if not isinstance(layer, nn.Conv2d) or not isinstance(before, nn.Conv2d):
            continue
        if layer.stride == before.stride:
            continue
        cuts_patches = all(conv.kernel_size == conv.stride for conv in (layer, before))
        noun = "patches" if cuts_patches else "stride"
        sizes = ("x".join(map(str, conv.stride)) for conv in (layer, before))
        changes.append("{} of {} instead of {} in {}".format(noun, *sizes, name))
    return changes
