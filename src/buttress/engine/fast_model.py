"""The inference-optimized model: the same function as a model, computed faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.problem import input_gradient
from buttress.engine import rewrites
from buttress.engine.cuda_graphs import replay_as_cuda_graphs
from buttress.engine.rewrites import NotApplicable, Rewrite
from buttress.engine.shared_weights import attack_form, training_form
from buttress.models.cost import MacCounter
from buttress.models.eval_mode import eval_mode
from buttress.system.cpu import disable_malloc_trim

LOGIT_TOLERANCE = 1e-4  # relative L2 difference of logits: sums in another order
GRADIENT_TOLERANCE = 2e-2  # of gradients: rounding may flip the side of a ReLU
SHARED_TOLERANCE = 1e-3  # of logits in training, where weights may be badly scaled
MAX_PROBE_IMAGES, MIN_PROBE_IMAGES = 32, 4  # on which a rewrite is compared with the original
PROBE_MACS = 1e8  # multiply-accumulates of one such pass, about
# Passes of an image from which a form saves more time than building it takes. On the models of the
# benchmark that is at 600 to 2,000 passes, and at 1,000 to 6,700 for the form without gradients.
MIN_OPTIMIZED_PASSES = 2_000
MIN_FORWARD_PASSES = 10_000
BATCH_SIZES = (8, 16, 32, 64, 128, 256)  # choices for the saturating batch
SATURATING_MACS = 5e8  # multiply-accumulates of a pass next to which its overhead is small

REWRITES: tuple[tuple[str, Rewrite], ...] = (
    ("BatchNorm folded", rewrites.fold_batchnorm),
    ("last block for the class token only", rewrites.shorten_last_block),
    ("strided gradients", rewrites.use_strided_gradients),
    ("channels last", rewrites.copy_channels_last_on_cpu),
)
DEVICE_REWRITES = {"cuda": (("CUDA graphs", replay_as_cuda_graphs),)}  # by type of device


@dataclass
class FastModel:
    """An inference-optimized model: the same outputs as the original, in less time.

    - `select`: the fastest known form for attacks on a fixed model.
    - `share_weights`: a form that follows the weights of a model in training, for attacks on it.
    - `train_weights`: a form to train those weights with.
    - `keep_parameters`: a copy whose parameters have the same names, for analyses that move them.

    Which rewrites are used depends on the layers, the device and the data type alone, never on a
    clock, so that equal evaluations compute equal numbers on a busy machine too. In exact
    arithmetic every form is the original; in floating point they differ by rounding. Each rewrite
    is compared with the original on a few images (logits, and in `select` input gradients) and
    left out if it differs by more or fails; ``notes`` has the reasons. An attack confirms every
    success in the original model (`buttress.engine.confirm`).
    """

    module: nn.Module  # what to call; the original model where no rewrite applies
    notes: tuple[str, ...] = ()  # rewrites that are used, and why the others are not
    saturating_batch: int | None = None  # images that keep a CPU busy; None: not known
    _images: float = math.inf  # that will be attacked
    _original: OriginalOutputs | None = field(default=None, repr=False)

    @classmethod
    def select(
        cls,
        model: nn.Module,
        x: Tensor,
        *,
        images: float = math.inf,
        passes: float = math.inf,
        compile: bool = False,
    ) -> FastModel:
        """The form of a model for attacks; ``x`` (N, C, H, W) are images to compare on.

        ``images`` will be attacked with ``passes`` each, in forward passes: for few of them the
        model itself is used. ``compile`` adds torch.compile. Call `optimize_forward` before many
        forward passes.
        """
        disable_malloc_trim()
        with eval_mode(model):
            macs = _count_macs(model, x[:1])
            saturating_batch = next(
                (n for n in BATCH_SIZES if n * macs >= SATURATING_MACS), BATCH_SIZES[-1]
            )
            is_cpu = x.device.type == "cpu"
            fast_model = cls(model, (), saturating_batch if is_cpu else None, images)
            if images * passes < MIN_OPTIMIZED_PASSES:
                fast_model.notes = (
                    f"not optimized: {images * passes:.0f} passes were predicted, and it pays "
                    f"from {MIN_OPTIMIZED_PASSES} on",
                )
                return fast_model
            num_images = max(MIN_PROBE_IMAGES, min(MAX_PROBE_IMAGES, int(PROBE_MACS / macs)))
            original = OriginalOutputs(model, x[:num_images])
            fast_model._original = original
            fast_model._apply_all(REWRITES, original)
            if compile:
                fast_model._apply("torch.compile", rewrites.compile_model, original)
            else:
                for name, rewrite in DEVICE_REWRITES.get(x.device.type, ()):
                    fast_model._apply(name, rewrite, original)
        return fast_model

    @classmethod
    def share_weights(cls, model: nn.Module, x: Tensor) -> FastModel:
        """A form for attacks in training; call `refresh` after each change of the weights."""
        return cls._check_shared(model, attack_form, x)

    @classmethod
    def train_weights(cls, model: nn.Module, x: Tensor) -> FastModel:
        """A form whose parameters are those of the model, to compute their gradients with."""
        return cls._check_shared(model, lambda original, _: training_form(original), x)

    @classmethod
    def _check_shared(cls, model: nn.Module, rewrite: Rewrite, x: Tensor) -> FastModel:
        with eval_mode(model), torch.no_grad():
            try:
                fast_model = cls(rewrite(model, x))
                difference = _relative_difference(model(x), fast_model.refresh()(x))
            except Exception:  # a user's model may refuse in its own way
                return cls(model)
        return fast_model if difference <= SHARED_TOLERANCE else cls(model)

    @classmethod
    def keep_parameters(cls, model: nn.Module, x: Tensor) -> FastModel:
        """A channels-last copy whose parameters have the names of the original's.

        Only for models with BatchNorm: they pass feature maps from layer to layer and take up to
        half the time; models of tokens gain nothing.
        """
        if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
            return cls(model)
        try:
            with eval_mode(model), torch.no_grad():
                copied = rewrites.copy_channels_last(model, x)
                difference = _relative_difference(model(x), copied(x))
        except Exception:  # a user's model may refuse in its own way
            return cls(model)
        return cls(copied) if difference <= LOGIT_TOLERANCE else cls(model)

    def optimize_forward(self, passes: float = math.inf) -> None:
        """Adds a form for passes without gradients, once: before an attack with many of them.

        ``passes`` are those of the attack on one image.
        """
        is_worthwhile = self._images * passes >= MIN_FORWARD_PASSES
        if is_worthwhile and (original := self._original) is not None:
            self._original = None
            with eval_mode(original.model):
                self._apply("frozen forward pass", rewrites.freeze_forward, original)

    def refresh(self) -> nn.Module:
        """The form of `share_weights` with the current weights of the model."""
        with torch.no_grad():
            for layer in self._refreshed_layers:
                layer.refresh()
        return self.module

    @cached_property
    def _refreshed_layers(self) -> list[Any]:
        layers = [layer for layer in self.module.modules() if hasattr(layer, "refresh")]
        return layers[::-1]  # parts before what holds them

    def _apply_all(
        self, named_rewrites: Sequence[tuple[str, Rewrite]], original: OriginalOutputs
    ) -> None:
        """Adds all rewrites that apply; one comparison is enough where all of them agree."""
        module, notes, is_rewritten = self.module, [], False
        for name, rewrite in named_rewrites:
            try:
                module = rewrite(module, original.x).eval().requires_grad_(False)
                notes.append(name)
                is_rewritten = True
            except Exception as error:  # a user's model may refuse in its own way
                notes.append(f"{name}: not used, {_describe_error(error)}")
        try:
            is_equal = not is_rewritten or not original.describe_mismatch(module)
        except Exception:  # which of them is at fault is seen one by one
            is_equal = False
        if is_equal:
            self.module, self.notes = module, (*self.notes, *notes)
            return
        for name, rewrite in named_rewrites:
            self._apply(name, rewrite, original)

    def _apply(self, name: str, rewrite: Rewrite, original: OriginalOutputs) -> None:
        """Adds one rewrite on top of the others, if it applies and agrees with the original."""
        try:
            candidate = rewrite(self.module, original.x).eval().requires_grad_(False)
            reason = original.describe_mismatch(candidate)
        except Exception as error:  # a user's model may refuse in its own way
            reason = _describe_error(error)
        if not reason:
            self.module = candidate
        self.notes += (f"{name}: not used, {reason}" if reason else name,)


def _describe_error(error: Exception) -> str:
    if isinstance(error, NotApplicable):
        return str(error)
    return " ".join([type(error).__name__, *str(error).strip().splitlines()[-1:]])


class OriginalOutputs:
    """Logits and input gradients of a model on a few images, which a rewrite must reproduce."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x = model, x
        # Two points unlike the data too: a traced graph has one branch only.
        self.points = torch.cat([x, 1 - x[:1], torch.zeros_like(x[:1])])
        with torch.no_grad():
            self.logits = model(self.points)
        self.gradients = _squared_logits_gradient(model, x)

    def describe_mismatch(self, candidate: nn.Module) -> str:
        """How a candidate differs from the model; empty if it agrees."""
        with torch.no_grad():
            candidate(self.x[:1])  # a trace may have fixed the number of images
            logits = candidate(self.points)
        if self.logits.shape != logits.shape or not logits.isfinite().all():
            return "its logits have another shape or are not finite"
        if (difference := _relative_difference(self.logits, logits)) > LOGIT_TOLERANCE:
            return f"its logits differ by {difference:.1e} of their size"
        gradients = _squared_logits_gradient(candidate, self.x)
        if (difference := _relative_difference(self.gradients, gradients)) > GRADIENT_TOLERANCE:
            return f"its gradients differ by {difference:.1e} of their size"
        return ""


def _relative_difference(expected: Tensor, values: Tensor) -> float:
    return float((expected - values).norm() / expected.norm().clamp_min(1e-12))


def _squared_logits_gradient(model: nn.Module, x: Tensor) -> Tensor:
    """The gradient of the sum of all squared logits, in which every class takes part."""
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_(True)
        return input_gradient(model(point).square().sum(), point)


def _count_macs(model: nn.Module, x: Tensor) -> int:
    """About the multiply-accumulates of a forward pass; the parameters where none are seen."""
    counter = MacCounter()
    try:
        with torch.no_grad(), counter:
            model(x)
    except Exception:  # a user's model may refuse in its own way
        counter.macs = 0
    return counter.macs or max(1, sum(p.numel() for p in model.parameters()))
