"""``robustbench:DATA/THREAT/NAME``: the model zoo of RobustBench, through its own package."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buttress.errors import UnknownName, UserError
from buttress.models.core import Classifier
from buttress.models.load import wrap
from buttress.models.sources.core import SOURCES, Source, Wanted

PREFIX = "robustbench:"
SIZES = {"imagenet": 224, "imagenet_3d": 224}  # of the images; all others are 32
FORM = f"{PREFIX}DATA/THREAT/NAME"


@SOURCES.register("robustbench", form=FORM)
class RobustBench(Source):
    """A model of RobustBench's zoo, e.g. robustbench:cifar10/Linf/Carmon2019Unlabeled."""

    def reads(self, what: str) -> bool:
        return what.startswith(PREFIX)

    def open(self, what: str, wanted: Wanted) -> Classifier:
        parts = what.removeprefix(PREFIX).split("/")
        if len(parts) != 3 or not all(parts):
            raise UserError(f"a model of RobustBench is written {FORM}, but got {what!r}")
        size = wanted.image_size or SIZES.get(parts[0], 32)
        wanted.refuse_all(what, {"in_channels": 3})
        found = wrap(load_zoo(*parts), Wanted(num_classes=wanted.num_classes, image_size=size))
        found.name = what
        return found


def load_zoo(dataset: str, threat: str, name: str) -> nn.Module:
    """What RobustBench's own loader gives; its models take images in [0, 1]."""
    utils = _import("robustbench.utils")
    folder = Path(torch.hub.get_dir()) / "robustbench"  # its own default is the current folder
    names = _names(dataset, threat)
    if names and name not in names:
        near = difflib.get_close_matches(name, names, n=3)
        guess = f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(names)}"
        raise UnknownName(f"RobustBench has no model {name!r} for {dataset}/{threat}{guess}")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints where results go
            net: nn.Module = utils.load_model(
                model_name=name, model_dir=folder, dataset=dataset, threat_model=threat
            )
    except Exception as error:  # downloads and old checkpoints fail in many ways
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"RobustBench could not load {dataset}/{threat}/{name} ({type(error).__name__}: "
            f"{reason}). It downloads weights on first use; without a network, put them at "
            f"{folder / dataset / threat / name}.pt"
        ) from None
    return net


def _names(dataset: str, threat: str) -> list[str]:
    """The names of one board, as far as the package tells."""
    boards = getattr(_import("robustbench.model_zoo"), "model_dicts", {})
    for kind, threats in boards.items():
        if getattr(kind, "value", kind) == dataset:
            found = {getattr(t, "value", t): list(models) for t, models in threats.items()}
            return found.get(threat, [])
    return []


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"models of RobustBench need its package ({error}); install what it needs with `pip "
            "install buttress[robustbench]`, then the package from its repository with --no-deps, "
            "because it asks for an old timm"
        ) from None
