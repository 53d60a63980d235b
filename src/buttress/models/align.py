"""The tensors of a checkpoint under the names of a network: prefixes off, normalisation apart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from buttress.errors import UserError
from buttress.models.core import Classifier
from buttress.models.weights import some

# What wrappers put before names; beside these, any prefix that many names share is tried.
PREFIXES = (
    "module.", "model.", "net.", "_orig_mod.", "backbone.", "network.", "encoder.", "attacker.",
)  # fmt: skip
MEAN = ("mean", "mu", "new_mean", "image_mean", "pixel_mean")
STD = ("std", "sigma", "new_std", "image_std", "pixel_std")
COUNTERS = ("n_averaged",)  # of torch's AveragedModel
DEEPEST = 6  # names before a network's own


class Weights(NamedTuple):
    """The tensors of a checkpoint under the names of a network, its normalisation apart."""

    net: dict[str, Tensor]
    mean: list[float] | None
    std: list[float] | None


def align(weights: Mapping[str, Tensor], model: Classifier) -> Weights:
    """Finds the prefixes under which the names fit the model best, and takes them off.

    One prefix that many names share, of any names; the other names lose what wrappers are known
    to add. What is left over keeps its name.
    """
    own, target = model.state_dict().keys(), model.net.state_dict().keys()
    fitting, most = "", len(weights.keys() & target)
    for prefix in _prefixes(weights):
        inside = _inside(weights, prefix)
        if inside.keys() == own:  # nothing to guess: it is one of our own
            net = {n.removeprefix("net."): v for n, v in inside.items() if n.startswith("net.")}
            return Weights(net, *(_listed(inside[f"normalize.{w}"]) for w in ("mean", "std")))
        if (count := len(inside.keys() & target)) > most:
            fitting, most = prefix, count
    placed = {n: v for n, v in _inside(weights, fitting).items() if n in target}
    rest = {
        n: v
        for n, v in weights.items()
        if not n.startswith(fitting) or n.removeprefix(fitting) not in placed
    }
    left = _place_rest(placed, rest, target)
    mean, std = _take(left, MEAN), _take(left, STD)
    return Weights(placed | {n.removeprefix(fitting): v for n, v in left.items()}, mean, std)


def check_fit(weights: Mapping[str, Tensor], model: Classifier, place: str) -> None:
    """Refuses tensors that are not exactly those of the model's network."""
    target = model.net.state_dict()
    # Counters of batches are absent from files of old torch versions, which is harmless.
    missing = [n for n in target if n not in weights and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in weights if n not in target]
    if missing or unexpected:
        parts = [f"missing: {some(missing)}"] * bool(missing)
        parts += [f"unexpected: {some(unexpected)}"] * bool(unexpected)
        raise UserError(f"{place} does not fit model {model.name!r}; {'; '.join(parts)}")
    for name, value in weights.items():
        _check_tensor(name, value, target[name], model, place)


def _check_tensor(name: str, value: Tensor, own: Tensor, model: Classifier, place: str) -> None:
    if value.shape != own.shape:
        came, wants = tuple(value.shape), tuple(own.shape)
        hint = "; is this the right model and image_size?"
        if wants[:1] == (model.num_classes,) and came[1:] == wants[1:]:
            hint = f"; pass num_classes={came[0]}"
        raise UserError(
            f"{place} does not fit model {model.name!r}: {name} has the shape {came} in the "
            f"file and {wants} in the model{hint}"
        )
    if reason := mismatch(value, own):
        raise UserError(f"{place} does not fit model {model.name!r}: {name} {reason}")


def mismatch(value: Tensor, own: Tensor) -> str | None:
    """Why the numbers of a tensor cannot stand for those of a model's own, which are good."""
    is_kept = value.is_floating_point()
    if not own.is_floating_point():  # counters and indices, which some files hold as floats
        is_kept = torch.equal(value.to(own.dtype).to(value.dtype), value)
    if value.is_complex() or not is_kept:
        return f"must hold {own.dtype} values, but holds {value.dtype}; convert them as stored"
    is_finite = value.to(own.dtype).isfinite()  # which may be the smaller type
    if not bool(is_finite.all()) and bool(own.isfinite().all()):
        bad = int((~is_finite).sum())
        return f"holds NaN or infinity in {bad} of {value.numel()} places; the training diverged"
    return None


def _prefixes(weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Every beginning of a name that ends in a dot, the shortest first, with none before them."""
    found = {""}
    for name in weights:
        parts = name.split(".")[: DEEPEST + 1]
        found |= {".".join(parts[:k]) + "." for k in range(1, len(parts))}
    yield from sorted(found, key=lambda prefix: (prefix.count("."), prefix))


def _inside(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in weights.items() if n.startswith(prefix)}


def _place_rest(
    placed: dict[str, Tensor], rest: Mapping[str, Tensor], target: Collection[str]
) -> dict[str, Tensor]:
    """Puts names into place that lose known prefixes; returns those that find none.

    A second copy of a tensor that is in place already, as attack wrappers keep one, is dropped.
    """
    left: dict[str, Tensor] = {}
    for name, value in rest.items():
        found = next((n for n in _bare(name) if n in target), None)
        if name in COUNTERS or any(n in COUNTERS for n in _bare(name)):
            continue
        if found is None:
            left[name] = value
        elif found not in placed:
            placed[found] = value
        elif not _same(placed[found], value):
            left[name] = value
    return left


def _bare(name: str) -> Iterator[str]:
    """The name without one, two, ... of the prefixes that wrappers add."""
    yield name
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
        yield name


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _take(weights: dict[str, Tensor], leaves: tuple[str, ...]) -> list[float] | None:
    """Removes and returns the statistic of a normalisation; copies of it must agree."""
    found = {n: v for n, v in weights.items() if n.rpartition(".")[2] in leaves}
    values = list(found.values())
    if not values or any(not _same(values[0], v) for v in values[1:]):
        return None
    for name in found:
        del weights[name]
    return _listed(values[0])


def _listed(values: Tensor) -> list[float]:
    listed: list[float] = values.flatten().tolist()
    return listed
