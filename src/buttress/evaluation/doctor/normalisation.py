"""Do the images reach the network as it expects them?

Each check feeds the images in another form. A network that was trained on that form is then right
far more often, image by image, than chance explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from buttress.attacks.freeze import frozen
from buttress.evaluation.doctor.core import CHECKS, LOOK, Check, Patient, finding
from buttress.records.diagnosis import Finding

RISE = 0.05  # of the images must be right in addition ...
SURE = 3.0  # ... and so many standard deviations of a fair coin over the images that changed
STRETCHED = (
    2.0  # the spread of normalised images is about 1; normalised twice it is 1 / std, 3 or 4
)
ALIKE = 0.2  # relative: few images differ that much from the whole data set
INPUTS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Form(NamedTuple):
    """Another form of the images, in words."""

    name: str
    change: Callable[[Tensor], Tensor]


class Seen(NamedTuple):
    """How accuracy changes in a form."""

    form: str
    before: float
    after: float


@CHECKS.register("normalised_twice", tags=("look",))
def normalised_twice(patient: Patient) -> Finding | None:
    """The images are normalised twice: the network does better when one is undone."""
    remedy = "normalise once, in the first layer of the model; give it images in [0, 1]"
    forms = [
        Form(name, lambda x, m=mean, s=std: x * s + m)  # type: ignore[misc]
        for name, mean, std in _statistics(patient)
    ]
    if (seen := _better(patient, forms)) is not None:
        return _rises(normalised_twice, seen, "the images seem to be normalised twice", remedy)
    layers = _layers(patient.model)
    mean, std = first_input(patient)
    if not (_looks_twice(patient, mean, std) or (len(layers) >= 2 and std >= STRETCHED)):
        return None
    return finding(
        normalised_twice,
        "warning",
        f"the images seem to be normalised twice: what reaches the first layer has mean {mean:.2f} "
        f"and spread {std:.2f}, and {len(layers)} normalising layers were found",
        remedy,
        {"layers": len(layers), "mean": mean, "std": std},
    )


@CHECKS.register("not_normalised", tags=("look",))
def not_normalised(patient: Patient) -> Finding | None:
    """The images are not normalised: the network does better when they are."""
    forms = [
        Form(name, lambda x, m=mean, s=std: (x - m) / s)  # type: ignore[misc]
        for name, mean, std in _statistics(patient)
    ]
    if (seen := _better(patient, forms)) is None:
        return None
    remedy = "put the mean and std of training into the first layer of the model (mean=, std=)"
    return _rises(not_normalised, seen, "the images seem not to be normalised", remedy)


@CHECKS.register("wrong_range", tags=("look",))
def wrong_range(patient: Patient) -> Finding | None:
    """The network expects values up to 255, or the channels in the other order."""
    forms = [Form("values up to 255", lambda x: 255 * x)]
    if patient.x.shape[1] == 3:
        forms.append(Form("channels in the order blue, green, red", lambda x: x.flip(1)))
    if (seen := _better(patient, forms)) is None:
        return None
    said = "the network seems to expect another range or order of the pixels"
    return _rises(wrong_range, seen, said, "change the images in the first layer of the model")


def _looks_twice(patient: Patient, mean: float, std: float) -> bool:
    """Normalised once, images have mean 0 and spread 1; twice, -mean / std and 1 / std."""
    m, s = (sum(v) / len(v) for v in (patient.data.mean, patient.data.std))
    return abs(std * s - 1) < ALIKE and abs(mean + m / s) < ALIKE * m / s


def first_input(patient: Patient) -> tuple[float, float]:
    """Mean and spread of what the first convolution or linear layer gets."""
    found: list[tuple[float, float]] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not found and args and isinstance(args[0], Tensor):
            found.append((float(args[0].float().mean()), float(args[0].float().std())))

    layers = [m for m in patient.model.modules() if isinstance(m, INPUTS)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        with frozen(patient.model), torch.no_grad():
            patient.model(patient.x[:LOOK])
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else (math.nan, math.nan)


def _rises(check: Check, seen: Seen, said: str, remedy: str) -> Finding:
    return finding(
        check,
        "untrustworthy",
        f"{said}: accuracy without an attack rises from {seen.before:.1%} to {seen.after:.1%} "
        f"with {seen.form}",
        remedy,
        {"before": seen.before, "after": seen.after, "form": seen.form},
    )


def _better(patient: Patient, forms: Sequence[Form]) -> Seen | None:
    """The form in which far more images are right, if any."""
    found = []
    for form in forms:
        right = patient.answer(form.change(patient.x)).argmax(1) == patient.y
        gained = int((right & ~patient.right).sum())
        lost = int((patient.right & ~right).sum())
        sure = gained - lost >= SURE * math.sqrt(gained + lost)
        if gained and sure and gained - lost >= RISE * len(right):
            before, after = (float(r.float().mean()) for r in (patient.right, right))
            found.append(Seen(form.name, before, after))
    return max(found, key=lambda s: s.after, default=None)


def _statistics(patient: Patient) -> list[tuple[str, Tensor, Tensor]]:
    """Means and spreads that a normalisation may have: the data's, the model's own, and 1/2."""
    x = patient.x
    pairs = [("the mean and std of the data", patient.data.mean, patient.data.std)]
    pairs.append(("mean and std 1/2", (0.5,), (0.5,)))
    found = [(n, _column(m, x), _column(s, x)) for n, m, s in pairs]
    for layer in _layers(patient.model)[:2]:
        mean, std = (torch.as_tensor(v).flatten().tolist() for v in (layer.mean, layer.std))
        if len(mean) in (1, x.shape[1]) and len(std) == len(mean):
            found.append(("the mean and std of its own layer", _column(mean, x), _column(std, x)))
    return found


def _layers(model: nn.Module) -> list[nn.Module]:
    """Modules that hold a mean and a std, and change something."""
    found = []
    for module in model.modules():
        mean, std = getattr(module, "mean", None), getattr(module, "std", None)
        if isinstance(mean, (Tensor, tuple, list)) and isinstance(std, (Tensor, tuple, list)):
            values = [torch.as_tensor(v).float() for v in (mean, std)]
            if bool((values[0] != 0).any() or (values[1] != 1).any()):
                found.append(module)
    return found


def _column(values: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=x.dtype, device=x.device).view(-1, 1, 1)
