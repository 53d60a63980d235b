"""What an attack accepts (images, labels, model) and what every result of it must satisfy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.core import ATTACKS, Attack, attack_name
from buttress.attacks.problem import Problem
from buttress.data.checks import (
    as_tensor,
    check_image_shape,
    check_label_values,
    is_integer,
)
from buttress.engine.result import AttackResult
from buttress.errors import RunError, UserError
from buttress.models.eval_mode import is_differentiable
from buttress.threats.core import Threat

IN_PLACE_REMEDY = "begin its forward() with x = x.clone(), or avoid functions such as x.sub_(mean)"


def as_image_batch(x: Any) -> Tensor:
    """Images in [0, 1] as a tensor (N, C, H, W); numpy arrays and lists become float32."""
    if not isinstance(x, Tensor):
        x = as_tensor(x, "images")
        x = x.float() if x.is_floating_point() else x
    check_image_batch(x)
    return x.detach()


def check_image_batch(x: Tensor) -> None:
    """Refuses what is not a batch of images in [0, 1]."""
    if not is_dense(x):
        raise UserError(f"images must be a float tensor (N, C, H, W), but got {describe_tensor(x)}")
    check_image_shape(tuple(x.shape))
    if not x.is_floating_point():
        raise UserError(
            f"images must be floating point in [0, 1], but got {describe_tensor(x)}; convert pixel "
            "values of 0 to 255 with x.float() / 255 (numpy: x.astype('float32') / 255)"
        )
    if len(x) == 0:
        return
    if x.numel() == 0:
        raise UserError(f"images must have pixels, but got {describe_tensor(x)}")
    low, high = x.min().item(), x.max().item()
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"images must be in [0, 1], but they span [{low:.3g}, {high:.3g}]; divide by 255, and "
            "put mean and std normalization into the model (its first layer)"
        )


def as_label_batch(x: Tensor, y: Any) -> Tensor:
    """(N,) int64 labels of the images ``x``, from a tensor, a numpy array or a list."""
    if not isinstance(y, Tensor):
        y = as_tensor(y, "labels")
    if not is_dense(y):
        raise UserError(
            f"labels must be integers of shape ({len(x)},), but got {describe_tensor(y)}"
        )
    check_label_values(y, len(x))
    return y.long()


def as_sample_ids(x: Tensor, ids: Any) -> Tensor:
    """The sample ids; the positions if there are none."""
    if ids is None:
        return torch.arange(len(x))
    ids = ids if isinstance(ids, Tensor) else as_tensor(ids, "ids")
    if not is_dense(ids) or ids.shape != x.shape[:1] or not is_integer(ids):
        raise UserError(
            f"`ids` must have one whole number per image, {len(x)}, but got {describe_tensor(ids)}"
        )
    return ids.long()


def check_is_module(model: object) -> None:
    """Refuses a model that is no module, and says how to make one."""
    if isinstance(model, nn.Module):
        return
    remedy = "call it in the forward() of a module"
    if isinstance(model, (str, Path)):
        remedy = f"load it with bt.load_model({str(model)!r})"
    elif isinstance(model, Mapping):
        remedy = "load its weights into a module with load_state_dict(), or bt.load_model(FILE)"
    elif not callable(model):
        remedy = "the arguments are (model, x, y), or (model, data)"
    raise UserError(
        f"the model must be a torch.nn.Module, but got {type(model).__name__}; {remedy}"
    )


def is_dense(values: object) -> bool:
    """Whether it is a tensor with its numbers in place: not sparse, not without storage."""
    return (
        isinstance(values, Tensor)
        and values.layout is torch.strided
        and not values.is_meta
        and not values.is_quantized
    )


def describe_tensor(values: object) -> str:
    if not isinstance(values, Tensor):
        return type(values).__name__
    form = "" if is_dense(values) else " without plain numbers"
    return f"{values.dtype} {tuple(values.shape)}{form}"


def check_model_output(
    model: nn.Module, x: Tensor, y: Tensor, num_classes: int | None = None
) -> Tensor:
    """Refuses a model whose output cannot be class scores for these labels; returns them."""
    given = x.clone()
    try:
        with torch.no_grad():
            out = model(x)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}"
        ) from error
    if not torch.equal(x, given):
        raise UserError(
            "the model must leave its input as it is, but changes the images in place; "
            f"{IN_PLACE_REMEDY}"
        )
    if not isinstance(out, Tensor) or out.ndim != 2:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(f"the model must return logits (N, classes), but returned {got}")
    max_label = int(y.max()) if len(y) else -1
    if num_classes is not None and out.shape[1] != num_classes:
        detector = "; if the last output rejects images, use `buttress doctor MODEL --adapt`"
        raise UserError(
            f"the data has {num_classes} classes, but the model returns {out.shape[1]}"
            + (detector if out.shape[1] == num_classes + 1 else "")
        )
    if out.shape[1] < 2:
        raise UserError("the model must tell at least two classes apart, but returns one")
    if len(y) and int(y.min()) < 0:
        raise UserError(f"labels must be class numbers from 0 on, but there is {int(y.min())}")
    if max_label >= out.shape[1]:
        raise UserError(
            f"there is a label {max_label}, but the model returns {out.shape[1]} classes"
        )
    return out


def check_differentiable(
    attack: Attack, model: nn.Module, threat: Threat, num_classes: int
) -> None:
    """Refuses an attack that needs gradients where the model gives none."""
    stages = attack.stages(threat, num_classes)
    gradient_attacks = [attack_name(stage) for stage in stages if stage.needs_grad]
    if gradient_attacks and not is_differentiable(model):
        black_box = [e.name for e in ATTACKS if not e.value.needs_grad]
        raise UserError(
            f"attack {gradient_attacks[0]} needs gradients, which this model does not give; the "
            f"black-box attacks are {', '.join(black_box)}"
        )


def check_adversarial_examples(name: str, problem: Problem, result: AttackResult) -> None:
    """Every result of every attack passes here: right shape, finite, in the box, in the set."""
    x, x_adv = problem.clean_images, result.x_adv
    if x_adv.shape != x.shape:
        raise RunError(f"attack {name} changed the shape to {tuple(x_adv.shape)}; this is a bug")
    if not len(x_adv):
        return
    low, high = torch.aminmax(x_adv)
    if not (low >= 0 and high <= 1):
        if not x_adv.isfinite().all():
            raise RunError(f"attack {name} returned values that are not finite; this is a bug")
        raise RunError(f"attack {name} left the box [0, 1]; this is a bug")
    if (excess := problem.allowed.excess(x, x_adv, result.points)).any():
        raise RunError(
            f"attack {name} left the set {problem.allowed} by {excess.max():.3g}: either the model "
            f"changes its input in place ({IN_PLACE_REMEDY}), or this is a bug"
        )
