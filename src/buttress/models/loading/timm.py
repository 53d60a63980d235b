"""``timm:NAME``: any model of timm, with random or pretrained weights."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from buttress.errors import UnknownNameError, UserError
from buttress.models.core import Classifier
from buttress.models.factory import Shape
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource, TrainedWeights
from buttress.models.loading.registered import UNTRAINED_WARNING, create_requested_model

PREFIX = "timm:"


@SOURCES.register("timm", form="timm:NAME")
class TimmSource(ModelSource):
    """Any model of timm; ``pretrained`` gets the weights that timm publishes for it."""

    is_architecture = True

    def matches(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        return build_timm(name, shape, options)

    def open(self, name: str, request: ModelRequest) -> TrainedWeights | Classifier:
        request.reject_model_argument(name)
        if request.pretrained:
            return load_pretrained(name, request)
        return create_requested_model(name, request, UNTRAINED_WARNING)


def build_timm(name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
    """Build a timm model with random weights; the image size is set if it has one."""
    architecture = resolve_timm_name(name)
    timm_args = {"num_classes": shape["num_classes"], "in_chans": shape["in_channels"], **options}
    try:
        try:
            return timm.create_model(architecture, img_size=shape["image_size"], **timm_args)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            return timm.create_model(architecture, **timm_args)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UserError(
            f"timm cannot build {architecture!r} at image_size={shape['image_size']} with options "
            f"{dict(options)}: {str(error) or type(error).__name__}; "
            "options such as patch_size or window_size may be needed"
        ) from error


def load_pretrained(name: str, request: ModelRequest) -> TrainedWeights:
    """Load timm's pretrained weights with their classes and normalization."""
    architecture = resolve_timm_name(name)
    try:
        net = timm.create_model(architecture, pretrained=True, **request.options)
    except Exception as error:  # hubs, mirrors and files each fail in their own way
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"the pretrained weights of {architecture!r} could not be downloaded ({reason}). "
            f"Offline, download them elsewhere and pass the file with --model {name}"
        ) from None
    published = net.pretrained_cfg
    channels, size, _ = published["input_size"]
    shape = {"num_classes": net.num_classes, "image_size": size, "in_channels": channels}
    if request.num_classes not in (None, net.num_classes):
        raise UserError(
            f"{name} was pretrained on {net.num_classes} classes, but got "
            f"num_classes={request.num_classes}; use `buttress finetune {name} --pretrained` "
            "to change the number of classes"
        )
    return TrainedWeights(
        net.state_dict(),
        name,
        name,
        {**shape, **request.given_shape()},
        *request.normalization(published["mean"], published["std"]),
        options=request.options,
    )


def resolve_timm_name(name: str) -> str:
    """The name as timm has it."""
    architecture = name.removeprefix(PREFIX)
    if not timm.is_model(architecture):
        close_matches = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        guess = f"; did you mean {' or '.join(map(repr, close_matches))}?" if close_matches else "."
        raise UnknownNameError(
            f"timm has no model {architecture!r}{guess} `timm.list_models()` lists all models."
        )
    return architecture
