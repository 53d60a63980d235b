"""``NAME``: an architecture of the registry."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from buttress.errors import UserError
from buttress.models.core import MODELS, Classifier, Sizes, create_model, find_model, is_known
from buttress.models.factory import Shape, call_factory
from buttress.models.sources.core import SOURCES, Source, Wanted
from buttress.registry import canonical

UNTRAINED = "the weights are random: this model was never trained"


@SOURCES.register("name", form="NAME")
class Name(Source):
    """A registered architecture with fresh weights; a file or folder of that name goes first."""

    builds = True

    def reads(self, what: str) -> bool:
        return is_known(what) and not Path(what).exists()

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        entry = find_model(name)
        sizes: Sizes = entry.extra["sizes"]
        if shape["image_size"] not in sizes:
            raise UserError(
                f"model {entry.name!r} takes image sizes {sizes}, "
                f"but got image_size={shape['image_size']}"
            )
        return call_factory(entry.name, entry.value, shape, options)

    def open(self, what: str, wanted: Wanted) -> Classifier:
        if not is_known(what):
            near = difflib.get_close_matches(canonical(what), MODELS.names(), n=3)
            guess = f" (near: {', '.join(near)})" if near else ""
            raise UserError(
                f"there is no checkpoint or run at {what}, and no model of that name{guess}; "
                "`buttress list sources` shows how a model is named, `buttress list models` "
                "the registered names"
            )
        wanted.refuse_model(what)
        made = create_model(
            what, **wanted.shape(), mean=wanted.mean, std=wanted.std, options=wanted.options, seed=0
        )
        made.caveats = (UNTRAINED,)
        return made
