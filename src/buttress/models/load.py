"""Trained models from files: a run of ours, or a checkpoint of anyone's with the model named."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from buttress.errors import UserError
from buttress.models.checkpoint import load_checkpoint
from buttress.models.core import (
    Classifier,
    Normalize,
    Values,
    create_model,
    is_known,
    on_device,
)
from buttress.models.reading import mismatch, read_tensors
from buttress.models.sources import is_function, is_timm
from buttress.records.run import Run, Which

# Where checkpoints keep the weights, the trained ones before their running average.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "ema")
PREFIXES = ("module.", "model.", "net.", "_orig_mod.")
MEAN, STD = ("mean", "mu"), ("std", "sigma")


class Weights(NamedTuple):
    """The tensors of a checkpoint under the names of a network, its normalisation apart."""

    net: dict[str, Tensor]
    mean: list[float] | None
    std: list[float] | None


def load_model(
    path: str | Path,
    *,
    model: str | None = None,
    num_classes: int | None = None,
    image_size: int | None = None,
    mean: Values | None = None,
    std: Values | None = None,
    device: str | torch.device = "cpu",
) -> Classifier:
    """A trained model in eval mode.

    Args:
        path: The directory of a run, or a checkpoint: ``.pt``, ``.pth``, ``.ckpt``,
            ``.safetensors``. No code in a checkpoint is ever run.
        model: What the weights of a checkpoint belong to: a registered name, ``timm:NAME`` or
            ``file.py:function``.
        num_classes: Of a checkpoint; 10 if not given.
        image_size: Of a checkpoint; 32 if not given.
        mean: Normalisation that the checkpoint's network was trained with, if the file has none.
        std: As ``mean``.
        device: Where the model goes.
    """
    _refuse_names(str(path))
    place = Path(path).expanduser()
    if place.is_dir():
        if any(given is not None for given in (model, num_classes, image_size, mean, std)):
            raise UserError(f"{place} is a run and knows its own model; give its path alone")
        return on_device(_load_run(place).eval(), device)
    if not place.is_file():
        raise UserError(f"there is no checkpoint or run at {place}")
    if model is None:
        raise UserError(
            f"{place} holds weights only; say which model they belong to with model=, "
            "as a registered name, timm:NAME or file.py:function"
        )
    created = create_model(
        model,
        num_classes=10 if num_classes is None else num_classes,
        image_size=32 if image_size is None else image_size,
        mean=mean,
        std=std,
        seed=0,
    )
    is_normalised = mean is not None or std is not None
    load_weights(created, read_weights(place), place, is_normalised=is_normalised)
    return on_device(created.eval(), device)


def load_weights(
    model: Classifier, tensors: Mapping[str, Tensor], path: Path, *, is_normalised: bool = False
) -> None:
    """Puts the tensors of the checkpoint at ``path`` into a model.

    Normalisation comes from the file if it has one; with ``is_normalised`` the model's own holds,
    and a file that disagrees is refused.
    """
    weights = align(tensors, model)
    _check(weights.net, model, path)
    if weights.mean is not None or weights.std is not None:
        try:
            stored = Normalize(weights.mean or 0.0, weights.std or 1.0, model.in_channels)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        if not is_normalised:
            model.normalize = stored
        elif not _agree(stored, model.normalize):
            raise UserError(
                f"{path} was trained with mean={weights.mean}, std={weights.std}, "
                "which differ from the mean and std given; leave those out"
            )
    model.net.load_state_dict(weights.net)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file; a file that needs code to be read is refused."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = read_tensors(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(_why_unreadable(path, error)) from None
    return _unwrap(content, path)


def read_run(run: Run, which: Which = "best") -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, with its normalisation."""
    checkpoint = Path(run.checkpoint(which))
    if not checkpoint.is_file():
        raise UserError(f"{run.path} has no checkpoint yet; train the run first")
    return _unwrap(load_checkpoint(checkpoint), checkpoint)


def align(weights: Mapping[str, Tensor], model: Classifier) -> Weights:
    """Finds the prefix under which the names fit the model best, and takes it off."""
    own, target = model.state_dict().keys(), model.net.state_dict().keys()
    stripped = fitting = dict(weights)
    while stripped:
        if stripped.keys() == own:  # nothing to guess: it is one of our own
            net = {n.removeprefix("net."): v for n, v in stripped.items() if n.startswith("net.")}
            mean, std = stripped["normalize.mean"], stripped["normalize.std"]
            return Weights(net, mean.flatten().tolist(), std.flatten().tolist())
        if len(stripped.keys() & target) > len(fitting.keys() & target):
            fitting = stripped
        stripped = _without_prefix(stripped)
    mean_found = _take(fitting, target, MEAN)
    return Weights(fitting, mean_found, _take(fitting, target, STD))


def _load_run(path: Path) -> Classifier:
    run = Run(path)
    spec = run.spec
    model = create_model(
        spec.model,
        num_classes=spec.num_classes,
        image_size=spec.image_size,
        in_channels=spec.in_channels,
        mean=spec.mean,
        std=spec.std,
        options=spec.model_args,
        seed=0,
    )
    load_weights(model, read_run(run), run.checkpoint("best"))
    model.caveats = tuple(run.caveats)
    return model


def _refuse_names(name: str) -> None:
    if is_timm(name) or is_function(name) or (is_known(name) and not Path(name).exists()):
        raise UserError(
            f"{name!r} names a model without trained weights; load_model needs a checkpoint or a "
            f"run. For the untrained model use create_model({name!r})"
        )


def _why_unreadable(path: Path, error: Exception) -> str:
    needed = re.search(r"GLOBAL ([\w.]+)", str(error))
    if needed or "weights_only" in str(error):
        what = f"it refers to {needed[1]}" if needed else "it is not plain tensors"
        return (
            f"{path} needs code to be read ({what}), and code in a checkpoint is never run; where "
            "you trust the file, save only its weights: torch.save(model.state_dict(), ...)"
        )
    return f"{path} is damaged or not a checkpoint: {' '.join(str(error).split())[:200]}"


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        for key in WRAPPERS:
            if isinstance(content.get(key), Mapping):
                return _unwrap(content[key], path)
        if found := {str(k): v for k, v in content.items() if isinstance(v, Tensor)}:
            return found
        raise UserError(f"{path} holds no weights; its keys are {some(map(str, content))}")
    raise UserError(f"{path} holds a {type(content).__name__}; it must hold a state dict")


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in MEAN + STD


def _without_prefix(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without a prefix that all share, those of a normalisation aside; or none."""
    names = [name for name in weights if not _is_statistic(name)]
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            return {name.removeprefix(prefix): value for name, value in weights.items()}
    return {}


def _take(
    weights: dict[str, Tensor], target: Collection[str], leaves: tuple[str, ...]
) -> list[float] | None:
    """Removes and returns the one statistic that is not the network's own."""
    found = [n for n in weights if n.rpartition(".")[2] in leaves and n not in target]
    return weights.pop(found[0]).flatten().tolist() if len(found) == 1 else None


def _check(weights: Mapping[str, Tensor], model: Classifier, path: Path) -> None:
    target = model.net.state_dict()
    # Counters of batches are absent from files of old torch versions, which is harmless.
    missing = [n for n in target if n not in weights and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in weights if n not in target]
    if missing or unexpected:
        parts = [f"missing: {some(missing)}"] * bool(missing)
        parts += [f"unexpected: {some(unexpected)}"] * bool(unexpected)
        raise UserError(f"{path} does not fit model {model.name!r}; {'; '.join(parts)}")
    for name, value in weights.items():
        if value.shape != target[name].shape:
            file, own = tuple(value.shape), tuple(target[name].shape)
            hint = "; is this the right model and image_size?"
            if own[:1] == (model.num_classes,) and file[1:] == own[1:]:
                hint = f"; pass num_classes={file[0]}"
            raise UserError(
                f"{path} does not fit model {model.name!r}: {name} has the shape {file} in the "
                f"file and {own} in the model{hint}"
            )
        if reason := mismatch(value, target[name]):
            raise UserError(f"{path} does not fit model {model.name!r}: {name} {reason}")


def _agree(a: Normalize, b: Normalize) -> bool:
    return torch.allclose(a.mean, b.mean, atol=1e-3) and torch.allclose(a.std, b.std, atol=1e-3)


def some(names: Any, at_most: int = 3) -> str:
    """The first of many names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - at_most} more" if len(listed) > at_most else ""
    return ", ".join(listed[:at_most]) + more
