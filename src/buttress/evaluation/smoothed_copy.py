"""A smoothed copy of a model: the same forward operations with gradients of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from buttress.attacks.losses import margin
from buttress.evaluation.doctor.core import ModelUnderTest
from buttress.evaluation.doctor.finite_differences import coarse_step
from buttress.models.cost import count_passes
from buttress.models.eval_mode import eval_mode
from buttress.results.attack_record import OTHER_GRADIENTS
from buttress.system.rng import SampleRNG, make_generator
from buttress.threats.norm_ball import TINY, NormBall

aten = torch.ops.aten
# Operations without a useful gradient; the copy gives them that of their first argument.
STEPS = frozenset({aten.round, aten.floor, aten.ceil, aten.trunc, aten.sign, aten.frac})
CLAMPS = frozenset({aten.clamp, aten.clamp_min, aten.clamp_max})
COMPARISONS: Mapping[Any, float] = {aten.gt: 1.0, aten.ge: 1.0, aten.lt: -1.0, aten.le: -1.0}
ORDER_KEEPING = frozenset({aten._softmax, aten._log_softmax, aten.sigmoid, aten.tanh, aten.exp})
NUMBER_OF_BOOL = frozenset({aten._to_copy, aten.mul})  # what makes numbers of comparisons

COPY_IMAGES = 8  # images per recorded batch
AVERAGED_POINTS = 8  # around each image, of an averaged copy
MIN_COSINE = 0.99  # between gradients of the model and of the copy; the same operations give 1
MAX_DIFFERING_FRACTION = 0.1  # of the points may have another gradient, e.g. at a kink


class Slot(NamedTuple):
    """The place of a tensor that a recorded operation takes or returns."""

    number: int


@dataclass
class Operation:
    """A recorded operation; tensors computed in the recording are slots."""

    function: Any
    inputs: list[Any]  # flattened arguments
    structure: Any
    outputs: list[int | None]  # slots of the flattened outputs, None for what is no tensor
    last_uses: list[int] = field(default_factory=list)  # slots that no later operation takes


class OperationRecorder(TorchDispatchMode):
    """Records the operations of a forward pass below autograd.

    There a backward pass of the model's own, `detach` and `no_grad` leave no trace but their
    values.
    """

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._tensors = [x]  # kept, so that no two have the same id
        self._slots = {id(x): 0}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flat, structure = tree_flatten((tuple(args), kwargs or {}))
        inputs = [Slot(self._slots[id(v)]) if id(v) in self._slots else v for v in flat]
        outputs = [self.slot_of(v) for v in tree_flatten(result)[0]]
        self.operations.append(Operation(func, inputs, structure, outputs))
        return result

    def slot_of(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        if id(value) not in self._slots:
            self._slots[id(value)] = len(self._tensors)
            self._tensors.append(value)
        return self._slots[id(value)]


class SmoothedCopy(nn.Module):
    """The operations of a model's forward pass, differentiated anew.

    Rounding, signs, comparisons and clamps have the gradient of the identity (straight-through,
    BPDA, arXiv:1802.00420), and a softmax or the like at the end, which may saturate, is left out.
    So a gradient that the model imitates, flips, detaches or hides by rounding comes back. Control
    flow is that of the recorded images.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.batch_size = len(x)
        with eval_mode(model), torch.no_grad():
            recorder = OperationRecorder(x)
            with recorder:
                logits = model(x)
        output = recorder.slot_of(logits)
        assert output is not None
        self._operations = recorder.operations
        self._output = self._without_last_activation(output)
        self._find_last_uses()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._replay(part) for part in x.split(self.batch_size)])

    def _without_last_activation(self, output: int) -> int:
        """The slot of the values that the last operations only rescale."""
        by_output = {operation.outputs[0]: operation for operation in self._operations}
        while (last := by_output.get(output)) and last.function.overloadpacket in ORDER_KEEPING:
            output = last.inputs[0].number
        return output

    def _find_last_uses(self) -> None:
        seen = {self._output}
        for operation in reversed(self._operations):
            slots = {v.number for v in operation.inputs if isinstance(v, Slot)}
            slots |= {slot for slot in operation.outputs if slot is not None}
            operation.last_uses = sorted(slots - seen)
            seen |= slots

    def _replay(self, x: Tensor) -> Tensor:
        """Logits of at most `batch_size` images; shapes are those of the recording."""
        missing = self.batch_size - len(x)
        padded = torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) if missing else x.clone()
        values: dict[int, Tensor] = {0: padded}
        differences: dict[int, Tensor] = {}  # of compared values, for a slot that is a comparison
        for operation in self._operations:
            arguments = [
                _resolve(v, operation, values, differences) if isinstance(v, Slot) else v
                for v in operation.inputs
            ]
            args, kwargs = tree_unflatten(arguments, operation.structure)
            result = _smoothed_result(operation, args, kwargs, differences)
            for slot, value in zip(operation.outputs, tree_flatten(result)[0], strict=True):
                if slot is not None:
                    values[slot] = value
            for slot in operation.last_uses:
                values.pop(slot, None)
        return values[self._output][: len(x)]


def _resolve(
    slot: Slot,
    operation: Operation,
    values: Mapping[int, Tensor],
    differences: Mapping[int, Tensor],
) -> Tensor:
    """The value of a slot; a comparison that becomes a number gets a gradient."""
    value = values[slot.number]
    if operation.function.overloadpacket in NUMBER_OF_BOOL and slot.number in differences:
        difference = differences[slot.number]
        return value.to(difference) + difference - difference.detach()
    return value


def _smoothed_result(
    operation: Operation, args: Any, kwargs: Any, differences: dict[int, Tensor]
) -> Any:
    packet = operation.function.overloadpacket
    if packet == aten.detach:
        return args[0]
    result = operation.function(*args, **kwargs)
    if packet in STEPS or packet in CLAMPS:
        if result.is_floating_point() and result.shape == args[0].shape:
            return args[0] + (result - args[0]).detach()
    elif packet in COMPARISONS and args[0].is_floating_point():
        (slot,) = operation.outputs
        assert slot is not None
        differences[slot] = COMPARISONS[packet] * (args[0] - args[1])
    return result


class AveragedCopy(nn.Module):
    """The mean logits of a model at random points around each image, the same for all images.

    Its gradient averages ripples and stairs that are finer than the distance of these points.
    """

    def __init__(self, model: nn.Module, step: float) -> None:
        super().__init__()
        self.model, self.step = model, step

    def forward(self, x: Tensor) -> Tensor:
        generator = make_generator(0, "averaged copy")
        noise = 2 * torch.rand((AVERAGED_POINTS, *x.shape[1:]), generator=generator) - 1
        points = x[:, None] + self.step * noise.to(x)
        logits: Tensor = self.model(points.flatten(0, 1))
        return logits.unflatten(0, (len(x), -1)).mean(1)


@dataclass(frozen=True)
class GradientComparison:
    """A smoothed copy, and whether its gradients are those of the model."""

    copy: SmoothedCopy | None  # None: none could be made
    summary: str
    passes: int = 0  # of single images, of model and copy
    averaging_step: float = 0.0  # distance of the points that gradients are averaged over

    @property
    def has_other_gradients(self) -> bool:
        return self.summary == OTHER_GRADIENTS

    @property
    def source(self) -> nn.Module | None:
        """What examples are made on."""
        if self.copy is None or not self.averaging_step:
            return self.copy
        return AveragedCopy(self.copy, self.averaging_step)

    def averaged(self, threat: NormBall, size: int) -> GradientComparison:
        """With gradients of the copy that are averaged over half of eps."""
        step = coarse_step(threat, size)
        return replace(self, averaging_step=step, summary=OTHER_GRADIENTS)


def compare_with_copy(subject: ModelUnderTest) -> GradientComparison:
    """Record a smoothed copy of a model and compare gradients of the margin.

    They are compared at images, at random points of the perturbation set, and one step along the
    gradient of the copy away.
    """
    if subject.is_black_box or subject.logits.dtype not in (torch.float32, torch.float64):
        return GradientComparison(None, "not compared: the model provides no gradients")
    x, y = subject.x[:COPY_IMAGES], subject.y[:COPY_IMAGES]
    rng = SampleRNG(subject.seed, "smoothed copy", subject.data.ids[: len(x)])
    try:
        copy = SmoothedCopy(subject.model, x)
        with count_passes(subject.model) as passes, count_passes(copy) as copy_passes:
            differing = _differing_fraction(subject, copy, x, y, rng)
    except Exception as error:  # a model of the user may do what cannot be recorded
        return GradientComparison(None, f"not recorded: {type(error).__name__}", len(x))
    if differing is None:
        return GradientComparison(None, "not compared: the copy has no gradients", len(x))
    summary = OTHER_GRADIENTS if differing > MAX_DIFFERING_FRACTION else "gradients of the model"
    return GradientComparison(copy, summary, len(x) + passes.total + copy_passes.total)


def _differing_fraction(
    subject: ModelUnderTest, copy: SmoothedCopy, x: Tensor, y: Tensor, rng: SampleRNG
) -> float | None:
    """Fraction of the points at which the gradients differ; None if those of the copy are zero."""
    threat = subject.threat
    copy_gradient = _margin_gradient(copy, x, y)
    if not copy_gradient.any():
        return None
    step = threat.radius * threat.step_direction(x, copy_gradient)
    others = (threat.random_start(x, rng), threat.project(x, x + step))
    gradients = [(x, copy_gradient), *((p, _margin_gradient(copy, p, y)) for p in others)]
    differing = []
    with eval_mode(subject.model):
        for point, gradient in gradients:
            own = _margin_gradient(subject.model, point, y).flatten(1).double()
            other = gradient.flatten(1).double()
            norms = own.norm(dim=1) * other.norm(dim=1)
            cosine = (own * other).sum(1) / norms.clamp_min(TINY)
            is_equal = (cosine >= MIN_COSINE) | ((own == 0) & (other == 0)).all(1)
            differing.append(~is_equal)
    return float(torch.cat(differing).float().mean())


def _margin_gradient(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """(N, C, H, W) gradient of the margin; zero if none reaches the image."""
    x = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        logits = model(x)
        if not logits.requires_grad:
            return torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(margin(logits, y).sum(), x, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient
