"""Trained models by whatever names them: a run, a file, a folder, a hub, a function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.align import Weights, align, check_fit
from buttress.models.core import Classifier, Normalize, create_model, on_device
from buttress.models.sources.core import Trained, Values, Wanted, find_source
from buttress.models.sources.run import read_run
from buttress.models.weights import read_weights, some
from buttress.records.run import Which

__all__ = [
    "Trained", "Wanted", "Weights", "align", "find_trained", "load_model", "load_wanted",
    "load_weights", "read_run", "read_weights", "some",
]  # fmt: skip


def load_model(  # noqa: PLR0913 - the public call; what it takes is what a model is
    what: str | Path | nn.Module,
    *,
    which: Which = "best",
    model: str | None = None,
    num_classes: int | None = None,
    image_size: int | None = None,
    in_channels: int | None = None,
    mean: Values | None = None,
    std: Values | None = None,
    options: Mapping[str, Any] | None = None,
    pretrained: bool = False,
    device: str | torch.device = "cpu",
) -> Classifier:
    """A model in eval mode, from anywhere: ``buttress list sources`` shows all ways to name one.

    Args:
        what: A run, a checkpoint (``.pt``, ``.pth``, ``.ckpt``, ``.safetensors``, ``.onnx``), an
            exported folder, ``hf:OWNER/NAME``, ``robustbench:DATA/THREAT/NAME``, ``timm:NAME``,
            ``file.py:function``, a registered name, or a network of yours. No code in a checkpoint
            is ever run.
        which: The ``best`` or the ``last`` epoch of a run.
        model: What the weights of a checkpoint belong to: a registered name, ``timm:NAME`` or
            ``file.py:function``.
        num_classes: Of a checkpoint; 10 if not given.
        image_size: Of a checkpoint; 32 if not given.
        in_channels: Of a checkpoint; 3 if not given.
        mean: Normalisation that the checkpoint's network was trained with, if the file has none.
        std: As ``mean``.
        options: Further arguments of the model, like ``{"activation": "silu"}``.
        pretrained: Get the weights that timm publishes for a ``timm:NAME``.
        device: Where the model goes.
    """
    wanted = Wanted(
        model,
        num_classes,
        image_size,
        in_channels,
        mean,
        std,
        dict(options or {}),
        pretrained,
        which=which,
    )
    return on_device(load_wanted(what, wanted), device)


def load_wanted(what: str | Path | nn.Module, wanted: Wanted) -> Classifier:
    """As `load_model`, with everything that is said about the model in one place."""
    if isinstance(what, nn.Module):
        return wrap(what, wanted).eval()
    found = _open(what, wanted)
    return (found if isinstance(found, Classifier) else assemble(found)).eval()


def find_trained(what: str | Path, wanted: Wanted) -> Trained:
    """The trained weights behind a name, to train on from."""
    found = _open(what, wanted)
    if isinstance(found, Trained):
        return found
    name = str(what)
    if not find_source(name).builds or found.caveats:
        why = found.caveats[0] if found.caveats else "it is a finished network without parts"
        raise UserError(f"{name} cannot be trained on from: {why}")
    shape = {k: getattr(found, k) for k in wanted.usual}
    return Trained(found.state_dict(), name, name, shape, options=wanted.options)


def assemble(found: Trained) -> Classifier:
    """The model of trained weights, with these in it."""
    made = create_model(
        found.model, **found.shape, mean=found.mean, std=found.std, options=found.options, seed=0
    )
    load_weights(made, found.weights, found.place, is_normalised=found.is_normalised)
    made.caveats = found.caveats
    return made


def load_weights(
    model: Classifier,
    tensors: Mapping[str, Tensor],
    place: str | Path,
    *,
    is_normalised: bool = False,
) -> None:
    """Puts the tensors of the checkpoint at ``place`` into a model.

    Normalisation comes from the file if it has one; with ``is_normalised`` the model's own holds,
    and a file that disagrees is refused.
    """
    weights = align(tensors, model)
    check_fit(weights.net, model, str(place))
    if weights.mean is not None or weights.std is not None:
        try:
            stored = Normalize(weights.mean or 0.0, weights.std or 1.0, model.in_channels)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        if not is_normalised:
            model.normalize = stored
        elif not _agree(stored, model.normalize):
            raise UserError(
                f"{place} was trained with mean={weights.mean}, std={weights.std}, "
                "which differ from the mean and std given; leave those out"
            )
    model.net.load_state_dict(weights.net)


def _open(what: str | Path, wanted: Wanted) -> Trained | Classifier:
    name = str(Path(what).expanduser()) if str(what).startswith("~") else str(what)
    source = find_source(name)
    if wanted.pretrained and not name.startswith("timm:"):
        raise UserError(f"pretrained weights belong to timm:NAME, but got {name!r}; leave them out")
    return source.open(name, wanted)


def wrap(net: nn.Module, wanted: Wanted) -> Classifier:
    """A network of the user's own; one look at a black image tells its number of classes."""
    wanted.refuse_model("a network")
    if isinstance(net, Classifier) and wanted.mean is None and wanted.std is None:
        return net
    shape = wanted.shape()
    normalize = Normalize(
        0.0 if wanted.mean is None else wanted.mean,
        1.0 if wanted.std is None else wanted.std,
        shape["in_channels"],
    )
    if (tensor := next(net.parameters(), None)) is not None:
        normalize.to(tensor.device, tensor.dtype)
    classes = _classes(net.eval(), normalize.mean, shape)
    if wanted.num_classes not in (None, classes):
        raise UserError(f"the network returns {classes} classes, not {wanted.num_classes}")
    return Classifier(net, normalize, type(net).__name__, {**shape, "num_classes": classes})


def _classes(net: nn.Module, like: Tensor, shape: Mapping[str, int]) -> int:
    black = like.new_zeros(1, shape["in_channels"], shape["image_size"], shape["image_size"])
    try:
        with torch.no_grad():
            logits = net(black)
    except Exception as error:  # any user's network may refuse in its own way
        raise UserError(
            f"the network does not take images of shape {tuple(black.shape)} "
            f"({' '.join(str(error).split())[:200]}); give its image_size and in_channels"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the network must return logits (N, classes), but returned {got}")
    return logits.shape[1]


def _agree(a: Normalize, b: Normalize) -> bool:
    return torch.allclose(a.mean, b.mean, atol=1e-3) and torch.allclose(a.std, b.std, atol=1e-3)
