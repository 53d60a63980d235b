"""Checks on the outputs: classes, finite, logits, deterministic, batch, mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from buttress.evaluation.doctor.core import CHECKS, PROBE_IMAGES, ModelUnderTest, make_finding
from buttress.models.eval_mode import eval_mode
from buttress.results.diagnosis import Finding, FindingSeverity

RANDOM_FUNCTIONS = re.compile(
    r"(rand(int|n|perm)?(_like)?|bernoulli|multinomial|normal|poisson|rrelu|random|uniform"
    r"|exponential)_?"
)
DROPOUT_FUNCTIONS = re.compile(r"(alpha_|feature_)?dropout[123]?d?")
BATCH_NORM = "batch_norm"


class FunctionRecorder(TorchFunctionMode):
    """Records calls of random functions and of BatchNorm with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.random: dict[str, None] = {}  # in the order they were called
        self.batch_statistics: dict[str, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, keyword_args = getattr(func, "__name__", ""), dict(kwargs or {})
        is_on = keyword_args.get("training", True in [a for a in args if isinstance(a, bool)])
        if RANDOM_FUNCTIONS.fullmatch(name) or (DROPOUT_FUNCTIONS.fullmatch(name) and is_on):
            self.random[name.rstrip("_")] = None
        if name == BATCH_NORM and is_on:
            self.batch_statistics[name] = None
        return func(*args, **keyword_args)


def record_functions(model: nn.Module, x: Tensor) -> FunctionRecorder:
    """Record the functions that a model calls in eval mode."""
    recorder = FunctionRecorder()
    with eval_mode(model), torch.no_grad(), recorder:
        model(x)
    return recorder


def modules_ignoring_eval(model: nn.Module) -> list[str]:
    """Types of the modules that stay in training mode after eval()."""
    with eval_mode(model):
        return list(dict.fromkeys(_training_module_types(model)))


def modules_in_training(model: nn.Module) -> list[str]:
    """Types of the modules in training mode, dropout and BatchNorm first."""
    kinds = list(dict.fromkeys(_training_module_types(model)))
    return sorted(kinds, key=lambda k: "Dropout" not in k and "BatchNorm" not in k)


def _training_module_types(model: nn.Module) -> Iterator[str]:
    return (type(m).__name__ for m in model.modules() if m.training)


# Of the spread of the logits: kernels for other batch sizes differ by far less.
ROUNDING_TOLERANCE = 1e-3
REPEATED_PASSES = 5  # as in AutoAttack's check
SINGLE_IMAGES = 8  # images that are also evaluated one by one


@CHECKS.register("class_count", tags=("model",))
def class_count(subject: ModelUnderTest) -> Finding | None:
    """Model and dataset differ in the number of classes."""
    model_classes, dataset_classes = subject.logits.shape[1], subject.data.num_classes
    if model_classes == dataset_classes:
        return None
    remedy = "load the model with the right number of classes, or use the dataset it was trained on"
    if model_classes == dataset_classes + 1:
        remedy += "; if the last output rejects an image, attack both at once with --adapt"
    return make_finding(
        class_count,
        "untrustworthy",
        f"the model has {model_classes} outputs, but the dataset has {dataset_classes} classes",
        remedy,
        {"model_classes": model_classes, "dataset_classes": dataset_classes},
    )


@CHECKS.register("nonfinite_outputs", tags=("model",))
def nonfinite_outputs(subject: ModelUnderTest) -> Finding | None:
    """Outputs or gradients are infinite or NaN."""
    outputs = _fraction(~subject.logits.isfinite().all(1))
    gradient = subject.input_gradient
    gradients = 0.0 if gradient is None else _fraction(~gradient.flatten(1).isfinite().all(1))
    if outputs == gradients == 0:
        return None
    quantity = "outputs are" if outputs else "gradients are"
    return make_finding(
        nonfinite_outputs,
        "untrustworthy",
        f"some {quantity} not finite ({max(outputs, gradients):.0%} of the probed images): "
        "attacks stop there and such images may wrongly count as robust",
        "look for a division by zero, a logarithm of zero or an overflow in the model",
        {"outputs": outputs, "gradients": gradients},
    )


@CHECKS.register("outputs_are_probabilities", tags=("model",))
def outputs_are_probabilities(subject: ModelUnderTest) -> Finding | None:
    """The outputs are probabilities, not logits."""
    sums = subject.logits.sum(1)
    if not ((subject.logits >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)):
        return None
    return make_finding(
        outputs_are_probabilities,
        "untrustworthy",
        "the model returns probabilities, not logits (non-negative, sum 1): losses saturate and "
        "attacks are too weak",
        "remove the softmax from the end of the model",
        {"min_output": float(subject.logits.min()), "sum": float(sums.mean())},
    )


RANDOMNESS_CHECK = "random_outputs"


@CHECKS.register(RANDOMNESS_CHECK, tags=("model",), paper="arXiv:1802.00420")
def random_outputs(subject: ModelUnderTest) -> Finding | None:
    """The outputs for the same images differ between passes."""
    x = subject.repeated_x
    logits = torch.stack([subject.compute_logits(x) for _ in range(REPEATED_PASSES)])
    change = float((logits - logits[0]).abs().max()) / _logit_std(logits[0])
    if not change > ROUNDING_TOLERANCE:
        return None
    labels = logits.argmax(2)
    changed_fraction = _fraction((labels != labels[0]).any(0))
    cause = ", ".join(
        [*record_functions(subject.model, x[:2]).random, *modules_ignoring_eval(subject.model)]
    )
    averaged = subject.averaged_passes > 1
    severity: FindingSeverity = "warning" if averaged else "untrustworthy"
    return make_finding(
        random_outputs,
        severity,
        f"{REPEATED_PASSES} passes over the same images differ{f' ({cause})' if cause else ''}: "
        "the model is randomized, and attacks that assume a deterministic model are too weak",
        "turn the randomness off for evaluation, or attack the mean of many passes "
        "(eot_samples, or autoattack with version=rand)",
        {
            "change": change,
            "predictions_changed_fraction": changed_fraction,
            "cause": cause or "unknown",
        },
    )


@CHECKS.register("batch_dependent_outputs", tags=("model",))
def batch_dependent_outputs(subject: ModelUnderTest) -> Finding | None:
    """The outputs for an image depend on the other images in its batch."""
    x = subject.repeated_x
    batched, batched_again = (
        subject.compute_logits(x)[:SINGLE_IMAGES],
        subject.compute_logits(x)[:SINGLE_IMAGES],
    )
    single = torch.cat([subject.compute_logits(image[None]) for image in x[:SINGLE_IMAGES]])
    noise = float((batched - batched_again).abs().max())
    change = (float((batched - single).abs().max()) - 2 * noise) / _logit_std(batched)
    if (
        len(x) < 2
        or noise / _logit_std(batched) > ROUNDING_TOLERANCE
        or not change > ROUNDING_TOLERANCE
    ):
        return None  # randomness has its own finding
    changed_fraction = _fraction(batched.argmax(1) != single.argmax(1))
    by_batch = bool(record_functions(subject.model, x[:2]).batch_statistics)
    cause = "BatchNorm uses the statistics of the batch" if by_batch else "unknown"
    return make_finding(
        batch_dependent_outputs,
        "untrustworthy",
        "the outputs for an image depend on the other images in its batch"
        f"{f' ({cause})' if by_batch else ''}, so results depend on the batch size and order",
        "make BatchNorm use its running statistics (track_running_stats, evaluation mode)",
        {"change": change, "predictions_changed_fraction": changed_fraction, "cause": cause},
    )


@CHECKS.register("gradient_mode_dependent_outputs", tags=("model",))
def gradient_mode_dependent_outputs(subject: ModelUnderTest) -> Finding | None:
    """The outputs differ between passes with and without gradients."""
    if subject.is_black_box:
        return None
    x = subject.repeated_x
    x = torch.cat([x, (x + subject.threat.eps).clamp(0, 1)])  # changed images too
    without, again = subject.compute_logits(x), subject.compute_logits(x)
    with eval_mode(subject.model), torch.enable_grad():
        parts = x.split(PROBE_IMAGES)
        logits = torch.cat([subject.model(p.detach().requires_grad_(True)).detach() for p in parts])
    noise = float((without - again).abs().max())
    change = (float((logits - without).abs().max()) - 2 * noise) / _logit_std(without)
    if noise / _logit_std(without) > ROUNDING_TOLERANCE or not change > ROUNDING_TOLERANCE:
        return None  # randomness has its own finding
    changed_fraction = _fraction(logits.argmax(1) != without.argmax(1))
    return make_finding(
        gradient_mode_dependent_outputs,
        "untrustworthy",
        "the outputs of passes with and without gradients differ: attacks optimize another model "
        "than the one that is scored",
        "look for torch.is_grad_enabled(), requires_grad or inference-only code in the model",
        {"change": change, "predictions_changed_fraction": changed_fraction},
    )


def _logit_std(logits: torch.Tensor) -> float:
    """Standard deviation of the logits, the scale of their changes."""
    std = float(logits.float().std())
    return std if std > 0 else 1.0


def _fraction(flags: torch.Tensor) -> float:
    return float(flags.float().mean())


@CHECKS.register("training_mode", tags=("model",))
def training_mode(subject: ModelUnderTest) -> Finding | None:
    """Modules are in training mode, which changes dropout and BatchNorm."""
    kinds = modules_in_training(subject.model)
    if not kinds:
        return None
    mode_dependent = [k for k in kinds if "Dropout" in k or "BatchNorm" in k]
    names = f" ({', '.join(mode_dependent)} behave differently)" if mode_dependent else ""
    return make_finding(
        training_mode,
        "warning",
        f"the model was in training mode{names}; it was switched to eval mode for the evaluation",
        "call model.eval() before measuring accuracy",
        {"modules": ", ".join(kinds[:5])},
    )
