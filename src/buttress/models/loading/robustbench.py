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

from buttress.errors import UnknownNameError, UserError
from buttress.models.core import Classifier
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource
from buttress.models.loading.load import wrap_network

PREFIX = "robustbench:"
IMAGE_SIZES = {"imagenet": 224, "imagenet_3d": 224}  # of the images; all others are 32
NAME_FORM = f"{PREFIX}DATA/THREAT/NAME"


@SOURCES.register("robustbench", form=NAME_FORM)
class RobustBenchSource(ModelSource):
    """A model of RobustBench's zoo, e.g. robustbench:cifar10/Linf/Carmon2019Unlabeled."""

    def matches(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def open(self, name: str, request: ModelRequest) -> Classifier:
        parts = name.removeprefix(PREFIX).split("/")
        if len(parts) != 3 or not all(parts):
            raise UserError(f"a model of RobustBench is written {NAME_FORM}, but got {name!r}")
        size = request.image_size or IMAGE_SIZES.get(parts[0], 32)
        request.reject_conflicts(name, {"in_channels": 3})
        model = wrap_network(
            load_robustbench_model(*parts),
            ModelRequest(num_classes=request.num_classes, image_size=size),
        )
        model.name = name
        return model


def load_robustbench_model(dataset: str, threat: str, name: str) -> nn.Module:
    """Load a model with RobustBench's own loader; its models take images in [0, 1]."""
    utils = _import_robustbench("robustbench.utils")
    folder = Path(torch.hub.get_dir()) / "robustbench"  # its own default is the current folder
    names = _model_names(dataset, threat)
    if names and name not in names:
        close_matches = difflib.get_close_matches(name, names, n=3)
        guess = f"; it has {', '.join(names)}"
        if close_matches:
            guess = f"; did you mean {' or '.join(close_matches)}?"
        raise UnknownNameError(f"RobustBench has no model {name!r} for {dataset}/{threat}{guess}")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints where results go
            net: nn.Module = utils.load_model(
                model_name=name, model_dir=folder, dataset=dataset, threat_model=threat
            )
    except Exception as error:  # downloads and old checkpoints fail in many ways
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"RobustBench could not load {dataset}/{threat}/{name} ({type(error).__name__}: "
            f"{reason}). It downloads weights on first use; offline, put them at "
            f"{folder / dataset / threat / name}.pt"
        ) from None
    return net


def _model_names(dataset: str, threat: str) -> list[str]:
    """Model names of one leaderboard, if the package lists them."""
    leaderboards = getattr(_import_robustbench("robustbench.model_zoo"), "model_dicts", {})
    for kind, threats in leaderboards.items():
        if getattr(kind, "value", kind) == dataset:
            by_threat = {getattr(t, "value", t): list(models) for t, models in threats.items()}
            return by_threat.get(threat, [])
    return []


def _import_robustbench(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"models of RobustBench need its package ({error}); install what it needs with "
            "`pip install buttress[robustbench]`, then the package from its repository with "
            "--no-deps, because it requires an old timm"
        ) from None
