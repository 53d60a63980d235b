"""``timm:NAME``: any model of timm, with fresh weights or with those that timm publishes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from buttress.errors import UnknownName, UserError
from buttress.models.core import Classifier, create_model
from buttress.models.factory import Shape
from buttress.models.sources.core import SOURCES, Source, Trained, Wanted
from buttress.models.sources.name import UNTRAINED

PREFIX = "timm:"


@SOURCES.register("timm", form="timm:NAME")
class Timm(Source):
    """Any model of timm; ``pretrained`` gets the weights that timm publishes for it."""

    builds = True

    def reads(self, what: str) -> bool:
        return what.startswith(PREFIX)

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        return build_timm(name, shape, options)

    def open(self, what: str, wanted: Wanted) -> Trained | Classifier:
        wanted.refuse_model(what)
        if wanted.pretrained:
            return published(what, wanted)
        made = create_model(
            what, **wanted.shape(), mean=wanted.mean, std=wanted.std, options=wanted.options, seed=0
        )
        made.caveats = (UNTRAINED,)
        return made


def build_timm(name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
    """A timm model with fresh weights; the image size is set where the model has one."""
    architecture = known(name)
    given = {"num_classes": shape["num_classes"], "in_chans": shape["in_channels"], **options}
    try:
        try:
            return timm.create_model(architecture, img_size=shape["image_size"], **given)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            return timm.create_model(architecture, **given)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UserError(
            f"timm cannot build {architecture!r} at image_size={shape['image_size']} with options "
            f"{dict(options)}: {str(error) or type(error).__name__}; "
            "options such as patch_size or window_size may be needed"
        ) from error


def published(what: str, wanted: Wanted) -> Trained:
    """The weights that timm downloads, with the classes and the normalisation they came with."""
    architecture = known(what)
    try:
        net = timm.create_model(architecture, pretrained=True, **wanted.options)
    except Exception as error:  # hubs, mirrors and files each fail in their own way
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"the pretrained weights of {architecture!r} could not be got ({reason}); they come "
            "from the network unless they are in the cache. Without one, get them elsewhere and "
            f"give the file with model={what!r}"
        ) from None
    facts = net.pretrained_cfg
    channels, size, _ = facts["input_size"]
    shape = {"num_classes": net.num_classes, "image_size": size, "in_channels": channels}
    if wanted.num_classes not in (None, net.num_classes):
        raise UserError(
            f"{what} was trained on {net.num_classes} classes, but got num_classes="
            f"{wanted.num_classes}; `buttress finetune {what} --pretrained` trains it on yours"
        )
    return Trained(
        net.state_dict(),
        what,
        what,
        {**shape, **wanted.said()},
        wanted.mean if wanted.is_normalised else facts["mean"],
        wanted.std if wanted.is_normalised else facts["std"],
        options=wanted.options,
    )


def known(name: str) -> str:
    """The name as timm has it."""
    architecture = name.removeprefix(PREFIX)
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        raise UnknownName(
            f"timm has no model {architecture!r}{guess} `timm.list_models()` has all."
        )
    return architecture
