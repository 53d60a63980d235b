"""Alignment of a checkpoint's state dict with a model's names; normalization is separated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from buttress.errors import UserError
from buttress.models.core import Classifier
from buttress.models.loading.robust_wrn import rename_robust_wrn
from buttress.models.loading.weight_file import abbreviate

# What wrappers put before names; beside these, any prefix that many names share is tried.
PREFIXES = (
    "module.", "model.", "net.", "_orig_mod.", "backbone.", "network.", "encoder.", "attacker.",
)  # fmt: skip
MEAN_NAMES = ("mean", "mu", "new_mean", "image_mean", "pixel_mean")
STD_NAMES = ("std", "sigma", "new_std", "image_std", "pixel_std")
IGNORED_NAMES = ("n_averaged",)  # of torch's AveragedModel
MAX_PREFIX_DEPTH = 6  # names before a network's own


class AlignedWeights(NamedTuple):
    """Tensors of a checkpoint under the model's names, with its normalization separated."""

    net: dict[str, Tensor]
    mean: list[float] | None
    std: list[float] | None


def align_state_dict(weights: Mapping[str, Tensor], model: Classifier) -> AlignedWeights:
    """Strip the prefixes under which the names of a state dict match the model best.

    One prefix that many names share, of any names; the other names lose what wrappers are known
    to add. What is left over keeps its name. The names of the RobustWRN authors become ours.
    """
    model_names, net_names = model.state_dict().keys(), model.net.state_dict().keys()
    renamed = rename_robust_wrn(weights) or {}
    if len(renamed.keys() & net_names) > len(weights.keys() & net_names):
        weights = renamed
    best_prefix, best_count = "", len(weights.keys() & net_names)
    for prefix in _candidate_prefixes(weights):
        stripped = _strip_prefix(weights, prefix)
        if stripped.keys() == model_names:  # nothing to guess: it is one of our own
            net = {n.removeprefix("net."): v for n, v in stripped.items() if n.startswith("net.")}
            return AlignedWeights(
                net, *(_to_list(stripped[f"normalize.{w}"]) for w in ("mean", "std"))
            )
        if (count := len(stripped.keys() & net_names)) > best_count:
            best_prefix, best_count = prefix, count
    matched = {n: v for n, v in _strip_prefix(weights, best_prefix).items() if n in net_names}
    unmatched = {
        n: v
        for n, v in weights.items()
        if not n.startswith(best_prefix) or n.removeprefix(best_prefix) not in matched
    }
    leftover = _match_known_prefixes(matched, unmatched, net_names)
    mean, std = _pop_statistic(leftover, MEAN_NAMES), _pop_statistic(leftover, STD_NAMES)
    return AlignedWeights(
        matched | {n.removeprefix(best_prefix): v for n, v in leftover.items()}, mean, std
    )


def check_state_dict(weights: Mapping[str, Tensor], model: Classifier, source_name: str) -> None:
    """Raise `UserError` if the tensors do not match the model's state dict exactly."""
    target = model.net.state_dict()
    # Counters of batches are absent from files of old torch versions, which is harmless.
    missing = [n for n in target if n not in weights and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in weights if n not in target]
    if missing or unexpected:
        parts = [f"missing keys: {abbreviate(missing)}"] * bool(missing)
        parts += [f"unexpected keys: {abbreviate(unexpected)}"] * bool(unexpected)
        raise UserError(f"{source_name} does not match model {model.name!r}; {'; '.join(parts)}")
    for name, value in weights.items():
        _check_tensor(name, value, target[name], model, source_name)


def _check_tensor(
    name: str, value: Tensor, expected: Tensor, model: Classifier, source_name: str
) -> None:
    if value.shape != expected.shape:
        given_shape, expected_shape = tuple(value.shape), tuple(expected.shape)
        hint = "; check --model and image_size"
        if expected_shape[:1] == (model.num_classes,) and given_shape[1:] == expected_shape[1:]:
            hint = f"; pass num_classes={given_shape[0]}"
        raise UserError(
            f"{source_name} does not match model {model.name!r}: {name} has shape "
            f"{given_shape} in the file, but {expected_shape} in the model{hint}"
        )
    if reason := value_mismatch(value, expected):
        raise UserError(f"{source_name} does not match model {model.name!r}: {name} {reason}")


def value_mismatch(value: Tensor, expected: Tensor) -> str | None:
    """Return why a tensor cannot replace the model's own (dtype, non-finite values), or None."""
    is_convertible = value.is_floating_point()
    if not expected.is_floating_point():  # counters and indices, which some files hold as floats
        is_convertible = torch.equal(value.to(expected.dtype).to(value.dtype), value)
    if value.is_complex() or not is_convertible:
        return (
            f"must be {expected.dtype}, but is {value.dtype} in the file; convert it before saving"
        )
    is_finite = value.to(expected.dtype).isfinite()  # which may be the smaller type
    if not bool(is_finite.all()) and bool(expected.isfinite().all()):
        bad = int((~is_finite).sum())
        return f"contains NaN or infinity in {bad} of {value.numel()} values; the training diverged"
    return None


def _candidate_prefixes(weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Every beginning of a name that ends in a dot, the shortest first, with none before them."""
    prefixes = {""}
    for name in weights:
        parts = name.split(".")[: MAX_PREFIX_DEPTH + 1]
        prefixes |= {".".join(parts[:k]) + "." for k in range(1, len(parts))}
    yield from sorted(prefixes, key=lambda prefix: (prefix.count("."), prefix))


def _strip_prefix(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in weights.items() if n.startswith(prefix)}


def _match_known_prefixes(
    matched: dict[str, Tensor], unmatched: Mapping[str, Tensor], target: Collection[str]
) -> dict[str, Tensor]:
    """Assign names after stripping known prefixes; return those that match nothing.

    A second copy of a tensor that is in place already, as attack wrappers keep one, is dropped.
    """
    leftover: dict[str, Tensor] = {}
    for name, value in unmatched.items():
        net_name = next((n for n in _without_wrappers(name) if n in target), None)
        if name in IGNORED_NAMES or any(n in IGNORED_NAMES for n in _without_wrappers(name)):
            continue
        if net_name is None:
            leftover[name] = value
        elif net_name not in matched:
            matched[net_name] = value
        elif not _is_equal(matched[net_name], value):
            leftover[name] = value
    return leftover


def _without_wrappers(name: str) -> Iterator[str]:
    """The name without one, two, ... of the prefixes that wrappers add."""
    yield name
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
        yield name


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _pop_statistic(weights: dict[str, Tensor], names: tuple[str, ...]) -> list[float] | None:
    """Remove and return a normalization statistic; its copies must agree."""
    statistics = {n: v for n, v in weights.items() if n.rpartition(".")[2] in names}
    values = list(statistics.values())
    if not values or any(not _is_equal(values[0], v) for v in values[1:]):
        return None
    for name in statistics:
        del weights[name]
    return _to_list(values[0])


def _to_list(values: Tensor) -> list[float]:
    numbers: list[float] = values.flatten().tolist()
    return numbers
