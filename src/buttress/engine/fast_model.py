"""A network made ready for an attack: the same function, faster, checked before it is used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from buttress.attacks.problem import input_gradient
from buttress.engine import rewrites as rewrite
from buttress.engine.processes import worker_thread_count
from buttress.engine.rewrites import find_conv_norm_pairs, shorten_last_block
from buttress.models.eval_mode import eval_mode
from buttress.models.sync_batchnorm import CPUSyncBatchNorm
from buttress.system.cpu import disable_malloc_trim
from buttress.system.interrupt import defer_interrupt

LOGIT_TOLERANCE = 1e-4  # logits may differ by this much of their size: sums in another order
GRADIENT_TOLERANCE = 2e-2  # gradients by more: a rounding may take another side of a ReLU
MAX_TIME_RATIO = 0.97  # of the time before: less gain is not worth another network
GIVE_UP_RATIO = 2  # times the time before: it need not be timed again
MAX_PROBE_IMAGES = 128  # images that are timed and compared, at most
PROBE_SECONDS = 0.02  # seconds that one pass over the probe may take
MAX_REPEATS, MIN_REPEATS, WARMUP_PASSES = 12, 3, 3
MIN_TIMING_SECONDS = 0.1  # seconds after which turns may end, if the fewest are done
CLEAR_GAIN, CLEAR_LOSS = 0.15, 0.03  # a share that is below or above by more needs no more turns
BATCH_SIZES = (8, 16, 32, 64, 128, 256)  # tried to see how many images keep a processor busy
BATCH_REPEATS, MAX_SWEEP_SECONDS = (
    5,
    0.15,
)  # times that each of them is timed, if that does not take seconds
STEP_OVERHEAD_SECONDS = 3e-3  # seconds that an attack spends on a step beside its pass, about
SATURATION_TOLERANCE = 1.08  # of the least time per image


@dataclass
class FastModel:
    """What an attack searches in. Successes are confirmed by the original."""

    module: nn.Module
    notes: tuple[str, ...] = ()  # what was done, and what was not and why
    saturating_batch: int | None = (
        None  # rows with which the processor is busy, if that was measured
    )
    selection: RewriteSelection | None = field(
        default=None, repr=False
    )  # where more forms can be tried

    def optimize_forward(self) -> None:
        """Tries what gains only for passes without a gradient: before an attack that makes many."""
        if (trial := self.selection) is None:
            return
        self.selection = None  # it is tried once
        with trial.attack_conditions():
            trial.try_rewrite(FROZEN_FORWARD)
            if trial.best is not self.module:
                self.saturating_batch = _measure_saturating_batch(trial.best, trial.images)
        self.module, self.notes = trial.best, trial.describe(self.saturating_batch)


@dataclass(frozen=True)
class RewriteOption:
    """A form to try, and whether passes without a gradient are what it is for."""

    name: str
    apply: Callable[[nn.Module, Tensor], nn.Module]
    timed_with_grad: bool = True


REWRITE_OPTIONS = (
    RewriteOption("BatchNorm folded", rewrite.fold_batchnorm),
    RewriteOption("one token in the last block", shorten_last_block),
    RewriteOption("strided gradients", rewrite.use_strided_gradients),
    RewriteOption("channels last", rewrite.copy_channels_last),
)
FROZEN_FORWARD = RewriteOption("frozen forward", rewrite.freeze_forward, timed_with_grad=False)
COMPILED = RewriteOption("compiled", rewrite.compile_model)


def prepare(model: nn.Module, x: Tensor, *, compile: bool = False) -> FastModel:
    """The fastest form of a model that gives its answers on the images ``x``.

    Forms are tried one upon the other; each is compared with the original, logits and gradients,
    and timed in turns with the best so far. ``compile`` tries torch.compile too.
    """
    disable_malloc_trim()
    selection = RewriteSelection(model, x)
    with selection.attack_conditions():
        selection.measure_original()
        for option in (*REWRITE_OPTIONS, *([COMPILED] if compile else [])):
            selection.try_rewrite(option)
        saturating_batch = _measure_saturating_batch(selection.best, x)
    return FastModel(
        selection.best,
        notes=selection.describe(saturating_batch),
        saturating_batch=saturating_batch,
        selection=selection,
    )


class OutputMismatch(Exception):
    """A form does not answer like the model."""


@dataclass
class RewriteSelection:
    """The best form so far."""

    model: nn.Module
    images: Tensor  # images
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def attack_conditions(self) -> Iterator[None]:
        """The model frozen, and as many threads as each process of an attack has."""
        with eval_mode(self.model), worker_thread_count(len(self.images), self.images.device):
            yield

    def describe(self, saturating_batch: int | None) -> tuple[str, ...]:
        batch_note = (
            [f"the processor is busy with {saturating_batch} images"] if saturating_batch else []
        )
        return (*self.notes, *batch_note)

    def measure_original(self) -> None:
        """Sees what the model answers, on no more images than are needed."""
        self.best, self.x = (
            self.model,
            self.images[: _probe_size(self.model, self.images[:MAX_PROBE_IMAGES])],
        )
        # also on points that no data set has: a trace knows one way only
        self.points = torch.cat([self.x, 1 - self.x[:1], torch.zeros_like(self.x[:1])])
        with torch.no_grad():
            self.logits = self.model(self.points)
        self.gradients = _probe_gradients(self.model, self.x)
        for _ in range(WARMUP_PASSES):  # what is timed first must not pay for memory and kernels
            _time_pass(self.model, self.x, grad=True)

    def try_rewrite(self, option: RewriteOption) -> None:
        """Takes a form over if it is right and faster."""
        candidate = self._build_candidate(option.apply)
        if isinstance(candidate, str):
            self.notes.append(f"{option.name}: not used, {candidate}")
            return
        time_ratio = self._time_ratio(candidate, option.timed_with_grad)
        if time_ratio <= MAX_TIME_RATIO:
            self.best = candidate
        used = "" if time_ratio <= MAX_TIME_RATIO else "not used, "
        self.notes.append(f"{option.name}: {used}{time_ratio:.2f} of the time before")

    def _build_candidate(self, apply: Callable[[nn.Module, Tensor], nn.Module]) -> nn.Module | str:
        """The changed network, or why there is none."""
        try:
            candidate = apply(self.best, self.x).eval().requires_grad_(False)
            with torch.no_grad():
                candidate(self.x[:1])  # a trace may have fixed the number of images
            self._check_outputs(candidate)
        except OutputMismatch as error:
            return str(error)
        except Exception as error:  # any user's network may refuse in its own way
            return " ".join([type(error).__name__, *str(error).strip().splitlines()[-1:]])
        return candidate

    def _check_outputs(self, candidate: nn.Module) -> None:
        """Refuses a network that does not stand for the model."""
        with torch.no_grad():
            expected, logits = self.logits, candidate(self.points)
        if expected.shape != logits.shape or not logits.isfinite().all():
            raise OutputMismatch("its logits have another shape or are not finite")
        if (difference := _relative_difference(expected, logits)) > LOGIT_TOLERANCE:
            raise OutputMismatch(f"its logits differ by {difference:.1e} of their size")
        if (
            difference := _relative_difference(self.gradients, _probe_gradients(candidate, self.x))
        ) > GRADIENT_TOLERANCE:
            raise OutputMismatch(f"its gradients differ by {difference:.1e} of their size")

    def _time_ratio(self, candidate: nn.Module, grad: bool) -> float:
        """Time of a form over that of the best so far: both in turns, so that load hits both.

        Turns end once it is clear whether the share is below ``MAX_TIME_RATIO``.
        """
        min_seconds, started = (math.inf, math.inf), time.perf_counter()
        for repeat in range(MAX_REPEATS + 1):
            seconds = [_time_pass(m, self.x, grad) for m in (self.best, candidate)]
            if not repeat:
                continue  # it warms up
            min_seconds = (
                min(min_seconds[0], seconds[0]),
                min(min_seconds[1], seconds[1]),
            )  # a disturbance only adds
            ratio = min_seconds[1] / min_seconds[0]
            has_enough_repeats = (
                repeat >= MIN_REPEATS and time.perf_counter() - started > MIN_TIMING_SECONDS
            )
            if ratio > GIVE_UP_RATIO or (
                has_enough_repeats
                and not MAX_TIME_RATIO - CLEAR_GAIN < ratio < MAX_TIME_RATIO + CLEAR_LOSS
            ):
                break
        return ratio


def _measure_saturating_batch(model: nn.Module, x: Tensor) -> int | None:
    """The fewest images with which a step is about as fast per image as with many."""
    if x.device.type != "cpu" or len(x) == 0:
        return None
    seconds_per_image: dict[int, float] = {}
    started = time.perf_counter()
    for repeat in range(
        BATCH_REPEATS
    ):  # all counts in turns, so that a load does not hit one of them
        for count in tuple(seconds_per_image) or BATCH_SIZES:
            rows = x[torch.arange(count) % len(x)]
            seconds = _time_pass(model, rows, grad=False)
            if (
                not repeat and seconds > PROBE_SECONDS / 2
            ):  # it may only have been the first of its size
                seconds = min(seconds, _time_pass(model, rows, grad=False))
            seconds_per_image[count] = min(
                seconds_per_image.get(count, math.inf), (seconds + STEP_OVERHEAD_SECONDS) / count
            )
            gain = seconds_per_image.get(count // 2, math.inf) / seconds_per_image[count]
            if (
                not repeat
                and seconds > PROBE_SECONDS / 2
                and (seconds > PROBE_SECONDS or gain < SATURATION_TOLERANCE)
            ):
                break  # more images would only take longer
        if repeat and time.perf_counter() - started > MAX_SWEEP_SECONDS:
            break
    best = min(seconds_per_image.values())
    return next(
        count
        for count, seconds in seconds_per_image.items()
        if seconds <= SATURATION_TOLERANCE * best
    )


def _probe_size(model: nn.Module, x: Tensor) -> int:
    """How many images are enough to measure with, in passes that do not take long."""
    _time_pass(model, x[:4], grad=True)
    seconds_per_image = _time_pass(model, x[:4], grad=True) / max(1, len(x[:4]))
    return max(4, min(len(x), int(PROBE_SECONDS / seconds_per_image)))


def _relative_difference(expected: Tensor, values: Tensor) -> float:
    return float((expected - values).norm() / expected.norm().clamp_min(1e-12))


def _probe_gradients(model: nn.Module, x: Tensor) -> Tensor:
    """Gradient of the sum of the squared logits: every class takes part."""
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_(True)
        return input_gradient(model(point).square().sum(), point)


def _time_pass(model: nn.Module, x: Tensor, grad: bool) -> float:
    """Time of a forward pass, and of the gradient of the images."""
    started = time.perf_counter()
    with torch.set_grad_enabled(grad):
        point = x.detach().requires_grad_(grad)
        logits = model(point)
        tensor = input_gradient(logits.sum(), point) if grad else logits
    float(tensor.flatten()[:1].sum())  # waits for the device
    return time.perf_counter() - started


ONEDNN_BLOCK = 16  # channels of the widest block of a convolution
SHARED_TOLERANCE = 1e-3  # logits may differ by this much of their size


class FoldedConv(nn.Module):
    """A convolution with the BatchNorm behind it, both of which stay where they are."""

    def __init__(self, conv: nn.Conv2d, norm: nn.Module) -> None:
        super().__init__()
        self.pair: tuple[Any, Any] = (conv, norm)  # a tuple: these are not modules of this one
        self.weight = conv.weight.detach()
        self.bias: Tensor | None = None

    def refresh(self) -> None:
        conv, norm = self.pair
        scale = (norm.running_var + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
        self.weight = conv.weight * scale.view(-1, 1, 1, 1)
        self.bias = shift * scale if norm.bias is None else torch.addcmul(norm.bias, shift, scale)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.pair[0]
        return F.conv2d(
            x, self.weight, self.bias, conv.stride, conv.padding, conv.dilation, conv.groups
        )


class Twin:
    """The faster form of a model, if there is one."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.form, self.folded = model, model, list[FoldedConv]()
        with eval_mode(model):
            form = fold_sharing_weights(model) or _try_shorten_last_block(model)
            if form is not None:
                self.form = form
                self.folded = [m for m in form.modules() if isinstance(m, FoldedConv)]
                self._check(x)

    def refresh(self) -> nn.Module:
        """The form with the weights of now."""
        with torch.no_grad():
            for layer in self.folded:
                layer.refresh()
        return self.form

    def _check(self, x: Tensor) -> None:
        """Drops the form if it does not answer like the model."""
        with torch.no_grad():
            expected, logits = self.model(x), self.refresh()(x)
        if not (expected - logits).norm() <= SHARED_TOLERANCE * expected.norm():
            self.form, self.folded = self.model, []


def use_channels_last(model: nn.Module) -> nn.Module:
    """The model with its features stored as convolutions like them, if most of it is those."""
    num_parameters = sum(p.numel() for p in model.parameters())
    spatial_convs = [
        m for m in model.modules() if isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1
    ]
    if 2 * sum(m.weight.numel() for m in spatial_convs) <= num_parameters:
        return model
    converted: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in converted.modules():
        if isinstance(layer, nn.Conv2d) and _has_onednn_overflow(layer):
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_contiguous_input)
    return converted


def _has_onednn_overflow(layer: nn.Conv2d) -> bool:
    """Whether the gradient of a layer's weights may destroy memory if pixels are stored whole.

    The library for convolutions on CPUs (oneDNN, up to 3.12 at least) writes past its buffer where
    a kernel of one pixel skips pixels and has fewer channels than a block: 8, or 16 with AVX-512.
    The process crashes later, or goes on with wrong gradients (uxlfoundation/oneDNN, report 6035).
    """
    is_skipping = max(layer.kernel_size) == 1 and max(layer.stride) > 1
    return is_skipping and layer.in_channels // layer.groups < ONEDNN_BLOCK


def _contiguous_input(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A copy: with one channel or one pixel `contiguous` would change nothing."""
    return (inputs[0].clone(memory_format=torch.contiguous_format),)


def _try_shorten_last_block(model: nn.Module) -> nn.Module | None:
    try:
        return shorten_last_block(model)
    except ValueError:
        return None


class SyncNormTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CPUSyncBatchNorm) or super().is_leaf_module(m, module_qualified_name)


def fold_sharing_weights(model: nn.Module) -> fx.GraphModule | None:
    """The graph of a model whose modules are those of the model itself, but for folded pairs."""
    try:
        with defer_interrupt():
            traced = fx.GraphModule(model, SyncNormTracer().trace(model))
    except Exception:  # a network with branches has no graph; it is attacked as it is
        return None
    pairs = [
        p for p in find_conv_norm_pairs(traced, _is_foldable_norm) if p[2].padding_mode == "zeros"
    ]
    for number, (conv_node, node, conv, norm) in enumerate(pairs):
        name = f"folded_{number}"
        traced.add_submodule(name, FoldedConv(conv, norm))
        with traced.graph.inserting_after(node):
            folded_node = traced.graph.call_module(name, conv_node.args, conv_node.kwargs)
        node.replace_all_uses_with(folded_node)
        traced.graph.erase_node(node)
        traced.graph.erase_node(conv_node)
    if not pairs:
        return None
    traced.recompile()
    return traced


def _is_foldable_norm(norm: object) -> bool:
    """A BatchNorm with running statistics and no activation of its own."""
    if type(norm) is nn.BatchNorm2d or (
        isinstance(norm, CPUSyncBatchNorm) and not hasattr(norm, "act")
    ):
        return norm.track_running_stats
    return False


CLOSE = 1e-4  # logits may differ by this much of their size: sums in another order


def ready(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy with the channels of a pixel side by side in memory, or the network itself.

    The copy has the parameters of the network under the same names, so that its weights can be
    moved; forms that fold layers into one another have not. Only for networks with BatchNorm: they
    pass maps from layer to layer and gain up to half of the time; tokens gain nothing. It is not
    timed, so that the same network always gets the same form.
    """
    if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        return model
    try:
        with eval_mode(model), torch.no_grad():
            candidate = rewrite.copy_channels_last(model, x)
            expected, logits = model(x), candidate(x)
    except Exception:  # any user's network may refuse in its own way
        return model
    difference = float((expected - logits).abs().max() / expected.abs().max().clamp_min(1e-12))
    return candidate if difference <= CLOSE else model
