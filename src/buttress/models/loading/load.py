"""Loading of trained models from a run, file, folder, hub or function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.core import Classifier, Normalize, create_model, move_to_device
from buttress.models.loading.align import align_state_dict, check_state_dict
from buttress.models.loading.core import ChannelValues, ModelRequest, TrainedWeights, find_source
from buttress.results.run import CheckpointName
from buttress.system.signatures import explain_arguments

# RobustBench's load_model takes three names.
ROBUSTBENCH_HINTS = dict.fromkeys(
    ("dataset", "threat_model"),
    "a model of RobustBench is written 'robustbench:cifar10/Linf/NAME'",
)


@explain_arguments(
    "bt.load_model('zoo:mlp_mixer_mini'), bt.load_model('runs/r1')", ROBUSTBENCH_HINTS
)
def load_model(  # noqa: PLR0913 - the public call; what it takes is what a model is
    source: str | Path | nn.Module,
    *,
    checkpoint: CheckpointName = "best",
    model: str | None = None,
    num_classes: int | None = None,
    image_size: int | None = None,
    in_channels: int | None = None,
    mean: ChannelValues | None = None,
    std: ChannelValues | None = None,
    options: Mapping[str, Any] | None = None,
    pretrained: bool = False,
    device: str | torch.device = "cpu",
) -> Classifier:
    """Load a model in eval mode; ``buttress list sources`` lists all kinds of sources.

    Args:
        source: A run, a checkpoint (``.pt``, ``.pth``, ``.ckpt``, ``.safetensors``, ``.onnx``), an
            exported folder, ``hf:OWNER/NAME``, ``zoo:NAME``, ``robustbench:DATA/THREAT/NAME``,
            ``timm:NAME``, ``file.py:function``, a registered name, or a module of yours. No code
            in a checkpoint is ever run.
        checkpoint: The ``best`` or the ``last`` epoch of a run.
        model: What the weights of a checkpoint belong to: a registered name, ``timm:NAME`` or
            ``file.py:function``.
        num_classes: Of a checkpoint; 10 if not given.
        image_size: Of a checkpoint; 32 if not given.
        in_channels: Of a checkpoint; 3 if not given.
        mean: Normalization that the checkpoint's model was trained with, if the file has none.
        std: As ``mean``.
        options: Further arguments of the model, like ``{"activation": "silu"}``.
        pretrained: Get the weights that timm publishes for a ``timm:NAME``.
        device: Where the model goes.
    """
    request = ModelRequest(
        model, num_classes, image_size, in_channels, mean, std, dict(options or {}), pretrained,
        checkpoint,
    )  # fmt: skip
    return move_to_device(load_requested_model(source, request), device)


def load_requested_model(source: str | Path | nn.Module, request: ModelRequest) -> Classifier:
    """Like `load_model`, with all options in one `ModelRequest`."""
    if isinstance(source, nn.Module):
        return wrap_network(source, request).eval()
    opened = _open_source(source, request)
    return (opened if isinstance(opened, Classifier) else build_trained_model(opened)).eval()


def load_trained_weights(source: str | Path, request: ModelRequest) -> TrainedWeights:
    """Load the trained weights of a source for fine-tuning."""
    opened = _open_source(source, request)
    if isinstance(opened, TrainedWeights):
        return opened
    name = str(source)
    if not find_source(name).is_architecture or opened.warnings:
        reason = opened.warnings[0] if opened.warnings else "it is a fixed model, for example ONNX"
        raise UserError(f"{name} cannot be fine-tuned: {reason}")
    shape = {k: getattr(opened, k) for k in request.default_shape}
    return TrainedWeights(opened.state_dict(), name, name, shape, options=request.options)


def build_trained_model(trained: TrainedWeights) -> Classifier:
    model = create_model(
        trained.model, **trained.shape, mean=trained.mean, std=trained.std,
        options=trained.options, seed=0,
    )  # fmt: skip
    load_weights(
        model, trained.weights, trained.source_name, keep_normalization=trained.keep_normalization
    )
    model.warnings, model.training_images = trained.warnings, trained.training_images
    return model


def load_weights(
    model: Classifier,
    tensors: Mapping[str, Tensor],
    source_name: str | Path,
    *,
    keep_normalization: bool = False,
) -> None:
    """Load the tensors of the checkpoint ``source_name`` into a model.

    Normalization comes from the file if it has one; with ``keep_normalization`` the model's own is
    kept, and a file that disagrees is rejected.
    """
    weights = align_state_dict(tensors, model)
    check_state_dict(weights.net, model, str(source_name))
    if weights.mean is not None or weights.std is not None:
        try:
            file_normalization = Normalize(
                weights.mean or 0.0, weights.std or 1.0, model.in_channels
            )
        except UserError as error:
            raise UserError(f"{source_name}: {error}") from None
        if not keep_normalization:
            model.normalize = file_normalization
        elif not _is_close(file_normalization, model.normalize):
            raise UserError(
                f"{source_name} was trained with mean={weights.mean}, std={weights.std}, "
                "which differ from the given mean and std; omit mean and std"
            )
    model.net.load_state_dict(weights.net)


def _open_source(model_source: str | Path, request: ModelRequest) -> TrainedWeights | Classifier:
    name = os.path.expanduser(model_source)
    source = find_source(name)
    if request.pretrained and not name.startswith("timm:"):
        raise UserError(f"`pretrained` applies only to timm:NAME, but got {name!r}")
    return source.open(name, request)


def wrap_network(net: nn.Module, request: ModelRequest) -> Classifier:
    """Wrap the user's module; one pass of a black image gives its number of classes."""
    request.reject_model_argument("a network")
    if isinstance(net, Classifier) and request.mean is None and request.std is None:
        return net
    shape = request.shape()
    normalize = Normalize(
        0.0 if request.mean is None else request.mean,
        1.0 if request.std is None else request.std,
        shape["in_channels"],
    )
    if (tensor := next(net.parameters(), None)) is not None:
        normalize.to(tensor.device, tensor.dtype)
    classes = _count_classes(net.eval(), normalize.mean, shape)
    if request.num_classes not in (None, classes):
        raise UserError(
            f"the model returns {classes} classes, but got num_classes={request.num_classes}"
        )
    return Classifier(net, normalize, type(net).__name__, {**shape, "num_classes": classes})


def _count_classes(net: nn.Module, like: Tensor, shape: Mapping[str, int]) -> int:
    black = like.new_zeros(1, shape["in_channels"], shape["image_size"], shape["image_size"])
    try:
        with torch.no_grad():
            logits = net(black)
    except Exception as error:  # a user's module may raise anything
        raise UserError(
            f"the model does not accept images of shape {tuple(black.shape)} "
            f"({' '.join(str(error).split())[:200]}); set image_size and in_channels"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model must return logits of shape (N, classes), but returned {got}")
    return logits.shape[1]


def _is_close(a: Normalize, b: Normalize) -> bool:
    return torch.allclose(a.mean, b.mean, atol=1e-3) and torch.allclose(a.std, b.std, atol=1e-3)
