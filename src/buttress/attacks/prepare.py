"""A network made ready for an attack: the same function, faster, checked before it is used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from buttress.allocator import keep_freed_memory
from buttress.attacks import rewrite
from buttress.attacks.fork import threads_of_one
from buttress.attacks.freeze import frozen
from buttress.attacks.last_token import last_token
from buttress.attacks.problem import gradient

CLOSE = 1e-4  # logits may differ by this much of their size: sums in another order
CLOSE_SLOPE = 2e-2  # gradients by more: a rounding may take another side of a ReLU
WORTH = 0.97  # of the time before: less gain is not worth another network
WORTH_LOW = 0.5  # low precision needs a second look at survivors, so it must gain much
SLOW = 2  # times the time before: it need not be timed again
PROBE = 128  # images that are timed and compared, at most
TURN = 0.02  # seconds that one pass over the probe may take
TURNS, FEWEST, WARM = 12, 3, 3
LONG = 0.1  # seconds after which turns may end, if the fewest are done
CLEAR, UNSURE = 0.15, 0.03  # a share that is below or above by more needs no more turns
ROWS = (8, 16, 32, 64, 128, 256)  # tried to see how many images keep a processor busy
SWEEPS, ENOUGH = 5, 0.15  # times that each of them is timed, if that does not take seconds
BESIDES = 3e-3  # seconds that an attack spends on a step beside its pass, about
NEARLY = 1.08  # of the least time per image
NO_LOW = "not tried, broken images leave and what is left would be searched twice"


@dataclass
class Prepared:
    """What an attack searches in. Successes are confirmed by the original."""

    model: nn.Module
    low: nn.Module | None = None  # bfloat16, for a first search; survivors are searched in `model`
    notes: tuple[str, ...] = ()  # what was done, and what was not and why
    full: int | None = None  # rows with which the processor is busy, if that was measured
    trial: Trial | None = field(default=None, repr=False)  # where more forms can be tried
    expected: set[str] = field(default_factory=set, repr=False)  # for what they were tried

    def expect_queries(self) -> None:
        """Tries what gains only for passes without a gradient: before an attack that makes many."""
        if (trial := self._trial_for("queries")) is None:
            return
        with trial.as_in_an_attack():
            trial.attempt(QUICK)
            if trial.best is not self.model:
                self.full = _full(trial.best, trial.given)
        self.model, self.notes = trial.best, trial.told(self.full)

    def expect_staying(self) -> None:
        """Tries low precision: before an attack in which broken images stay to the end.

        Where they leave, survivors take nearly all of the time and would be searched twice.
        """
        if (trial := self._trial_for("staying")) is None:
            return
        with trial.as_in_an_attack():
            self.low = trial.low_precision()
        self.notes = trial.told(self.full)

    def stay_in_float32(self) -> None:
        """No low precision is tried any more."""
        self.expected.add("staying")

    def _trial_for(self, what: str) -> Trial | None:
        """The trial, if this is the first time that it is needed for that."""
        is_first = what not in self.expected
        self.expected.add(what)
        return self.trial if is_first else None


@dataclass(frozen=True)
class Rewrite:
    """A form to try, and whether passes without a gradient are what it is for."""

    name: str
    change: Callable[[nn.Module, Tensor], nn.Module]
    grad: bool = True


REWRITES = (
    Rewrite("BatchNorm folded", rewrite.fold_batchnorm),
    Rewrite("one token in the last block", last_token),
    Rewrite("strided gradients", rewrite.strided_gradients),
    Rewrite("channels last", rewrite.channels_last),
)
QUICK = Rewrite("frozen forward", rewrite.frozen_forward, grad=False)
COMPILED = Rewrite("compiled", rewrite.compiled)


def prepare(model: nn.Module, x: Tensor, *, compile: bool = False) -> Prepared:
    """The fastest form of a model that gives its answers on the images ``x``.

    Forms are tried one upon the other; each is compared with the original, logits and gradients,
    and timed in turns with the best so far. ``compile`` tries torch.compile too.
    """
    keep_freed_memory()
    trial = Trial(model, x)
    with trial.as_in_an_attack():
        trial.start()
        for form in (*REWRITES, *([COMPILED] if compile else [])):
            trial.attempt(form)
        full = _full(trial.best, x)
    return Prepared(trial.best, notes=trial.told(full), full=full, trial=trial)


class Different(Exception):
    """A form does not answer like the model."""


@dataclass
class Trial:
    """The best form so far."""

    model: nn.Module
    given: Tensor  # images
    notes: list[str] = field(default_factory=list)
    low_note: str = NO_LOW

    @contextmanager
    def as_in_an_attack(self) -> Iterator[None]:
        """The model frozen, and as many threads as each process of an attack has."""
        with frozen(self.model), threads_of_one(len(self.given), self.given.device):
            yield

    def told(self, full: int | None) -> tuple[str, ...]:
        busy = [f"the processor is busy with {full} images"] if full else []
        return (*self.notes, f"bfloat16: {self.low_note}", *busy)

    def start(self) -> None:
        """Sees what the model answers, on no more images than are needed."""
        self.best, self.x = self.model, self.given[: _probe(self.model, self.given[:PROBE])]
        # also on points that no data set has: a trace knows one way only
        self.points = torch.cat([self.x, 1 - self.x[:1], torch.zeros_like(self.x[:1])])
        with torch.no_grad():
            self.logits = self.model(self.points)
        self.slope = _slope(self.model, self.x)
        for _ in range(WARM):  # what is timed first must not pay for memory and kernels
            _seconds(self.model, self.x, grad=True)

    def attempt(self, form: Rewrite) -> None:
        """Takes a form over if it is right and faster."""
        made = self._tried(form.change, self._check)
        if isinstance(made, str):
            self.notes.append(f"{form.name}: not used, {made}")
            return
        share = self._share(made, form.grad, WORTH)
        if share <= WORTH:
            self.best = made
        used = "" if share <= WORTH else "not used, "
        self.notes.append(f"{form.name}: {used}{share:.2f} of the time before")

    def low_precision(self) -> nn.Module | None:
        """The best form in bfloat16 where that is much faster; it need only be nearly right."""
        if self.x.device.type == "cpu" and not _has_bfloat16():
            self.low_note = "not used, this processor has no instructions for it"
            return None
        made = self._tried(rewrite.bfloat16)
        if isinstance(made, str):
            self.low_note = f"not used, {made}"
            return None
        few = self.x[:4]  # it can be many times slower where a processor does not have it
        if min(_seconds(made, few, grad=True) for _ in range(2)) > SLOW * min(
            _seconds(self.best, few, grad=True) for _ in range(2)
        ):
            self.low_note = f"not used, more than {SLOW} times the time"
            return None
        share = self._share(made, True, WORTH_LOW)
        used = "" if share <= WORTH_LOW else "not used, "
        self.low_note = f"{used}{share:.2f} of the time before"
        return made if share <= WORTH_LOW else None

    def _tried(
        self,
        change: Callable[[nn.Module, Tensor], nn.Module],
        check: Callable[[nn.Module], None] = lambda made: None,
    ) -> nn.Module | str:
        """The changed network, or why there is none."""
        try:
            made = change(self.best, self.x).eval().requires_grad_(False)
            with torch.no_grad():
                made(self.x[:1])  # a trace may have fixed the number of images
            check(made)
        except Different as error:
            return str(error)
        except Exception as error:  # any user's network may refuse in its own way
            return " ".join([type(error).__name__, *str(error).strip().splitlines()[-1:]])
        return made

    def _check(self, made: nn.Module) -> None:
        """Refuses a network that does not stand for the model."""
        with torch.no_grad():
            right, found = self.logits, made(self.points)
        if right.shape != found.shape or not found.isfinite().all():
            raise Different("its logits have another shape or are not finite")
        if (gap := _gap(right, found)) > CLOSE:
            raise Different(f"its logits differ by {gap:.1e} of their size")
        if (gap := _gap(self.slope, _slope(made, self.x))) > CLOSE_SLOPE:
            raise Different(f"its gradients differ by {gap:.1e} of their size")

    def _share(self, made: nn.Module, grad: bool, worth: float) -> float:
        """Time of a form over that of the best so far: both in turns, so that load hits both.

        Turns end once it is clear whether the share is below ``worth``.
        """
        least, started = (math.inf, math.inf), time.perf_counter()
        for turn in range(TURNS + 1):
            took = [_seconds(m, self.x, grad) for m in (self.best, made)]
            if not turn:
                continue  # it warms up
            least = min(least[0], took[0]), min(least[1], took[1])  # a disturbance only adds
            share = least[1] / least[0]
            is_known = turn >= FEWEST and time.perf_counter() - started > LONG
            if share > SLOW or (is_known and not worth - CLEAR < share < worth + UNSURE):
                break
        return share


def _has_bfloat16() -> bool:
    """Without instructions for it a processor takes many times as long; an unknown one is timed."""
    known = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return known is None or bool(known())


def _full(model: nn.Module, x: Tensor) -> int | None:
    """The fewest images with which a step is about as fast per image as with many."""
    if x.device.type != "cpu" or len(x) == 0:
        return None
    each: dict[int, float] = {}
    started = time.perf_counter()
    for turn in range(SWEEPS):  # all counts in turns, so that a load does not hit one of them
        for count in tuple(each) or ROWS:
            rows = x[torch.arange(count) % len(x)]
            seconds = _seconds(model, rows, grad=False)
            if not turn and seconds > TURN / 2:  # it may only have been the first of its size
                seconds = min(seconds, _seconds(model, rows, grad=False))
            each[count] = min(each.get(count, math.inf), (seconds + BESIDES) / count)
            gain = each.get(count // 2, math.inf) / each[count]
            if not turn and seconds > TURN / 2 and (seconds > TURN or gain < NEARLY):
                break  # more images would only take longer
        if turn and time.perf_counter() - started > ENOUGH:
            break
    best = min(each.values())
    return next(count for count, seconds in each.items() if seconds <= NEARLY * best)


def _probe(model: nn.Module, x: Tensor) -> int:
    """How many images are enough to measure with, in passes that do not take long."""
    _seconds(model, x[:4], grad=True)
    each = _seconds(model, x[:4], grad=True) / max(1, len(x[:4]))
    return max(4, min(len(x), int(TURN / each)))


def _gap(right: Tensor, found: Tensor) -> float:
    return float((right - found).norm() / right.norm().clamp_min(1e-12))


def _slope(model: nn.Module, x: Tensor) -> Tensor:
    """Gradient of the sum of the squared logits: every class takes part."""
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_(True)
        return gradient(model(point).square().sum(), point)


def _seconds(model: nn.Module, x: Tensor, grad: bool) -> float:
    """Time of a forward pass, and of the gradient of the images."""
    started = time.perf_counter()
    with torch.set_grad_enabled(grad):
        point = x.detach().requires_grad_(grad)
        logits = model(point)
        last = gradient(logits.sum(), point) if grad else logits
    float(last.flatten()[:1].sum())  # waits for the device
    return time.perf_counter() - started
