"""The public way to attack: checks what goes in, guards the model, verifies what comes out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from buttress.allocator import keep_freed_memory
from buttress.attacks.core import ATTACKS, Attack, check_norm
from buttress.attacks.deal import dealt
from buttress.attacks.fork import Task, in_processes, processes
from buttress.attacks.freeze import device_of, frozen, gives_gradients, on_device_of
from buttress.attacks.loop import OnStep, Outcome, Ways, attack_cost, run, search, wrong
from buttress.attacks.losses import margin
from buttress.attacks.prepare import Prepared
from buttress.attacks.problem import Meter, Problem
from buttress.errors import RunError, UserError
from buttress.registry import canonical
from buttress.streams import Streams
from buttress.threat import Threat


def list_attacks(tag: str | None = None) -> list[str]:
    return ATTACKS.names(tag)


def create_attack(name: str, **args: Any) -> Attack:
    """An attack by name, with its arguments checked."""
    return cast(Attack, ATTACKS.create(name, args))


def attack(
    name: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: str | Threat,
    seed: int = 0,
    ids: Tensor | None = None,
    **args: Any,
) -> Tensor:
    """Adversarial examples for ``x``, inside the threat's ball and [0, 1].

    Args:
        name: a registered attack; ``buttress list attacks`` shows all.
        model: any network from [0, 1] images to logits.
        x: (N, C, H, W) images in [0, 1].
        y: (N,) labels.
        threat: like ``Linf:8/255``.
        seed: with ``ids`` it decides all randomness.
        ids: (N,) permanent sample ids; the positions in ``x`` if not given.
        args: arguments of the attack, such as ``steps``.
    """
    chosen = create_attack(name, **args)
    return run_attack(chosen, model, x, y, Threat.parse(threat), ids=ids, how=How(seed)).x_adv


LONG = 15_000  # passes: shorter attacks are not worth more processes
MEMORY = 1 << 25  # bytes of images attacked at once: 2,700 of CIFAR-10, 55 of ImageNet


@dataclasses.dataclass(frozen=True)
class How:
    """How an attack is run; but for the seed, it changes no verdict."""

    seed: int = 0
    batch_size: int = 256
    stop_when_broken: bool = False
    on_step: OnStep | None = None
    prepared: Prepared | None = None  # of this very model: where to search
    workers: int | None = None  # processes; None: one per thread where that is faster


HOW = How()


def run_attack(
    chosen: Attack,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    ids: Tensor | None = None,
    how: How = HOW,
) -> Outcome:
    """Like `attack`, with the verdicts, losses and passes beside the examples."""
    check_images(x)
    check_labels(x, y)
    check_norm(chosen, threat)
    x, ids, y = x.detach(), check_ids(x, ids), y.long()
    name = attack_name(chosen)
    parts = []
    keep_freed_memory()
    with frozen(model):
        for piece in pieces(x, how.batch_size):
            xb, yb = on_device_of(model, x[piece]), y[piece].to(device_of(model))
            streams = Streams(how.seed, name, ids[piece])
            problem = Problem(model, xb, yb, threat, streams)
            first = check_logits(model, xb[:1], yb)
            told = _within(how.on_step, piece, len(x))
            sized = dataclasses.replace(problem, clean=first)
            check_gradients(chosen, sized)
            is_long = len(xb) * attack_cost(chosen, sized) >= LONG and chosen.passes == 1
            count = how.workers or (processes(len(xb), xb.device) if is_long else 1)
            out = _spread(chosen, problem, dataclasses.replace(how, on_step=told, workers=count))
            verify(name, problem, out.x_adv)
            names = _names(chosen.parts(sized))
            parts.append(dataclasses.replace(out, x_adv=out.x_adv.to(x), names=names))
    return _joined(parts, x)


def _names(parts: Sequence[Attack]) -> tuple[str, ...]:
    return tuple(attack_name(part) for part in parts) if len(parts) > 1 else ()


def _spread(chosen: Attack, problem: Problem, how: How) -> Outcome:
    """Each attack in one process or in several, to which the runs of what is left are dealt out."""
    count = how.workers or 1

    def search(attack: Attack, problem: Problem, so_far: Outcome, ways: Ways) -> Outcome:
        ready, busy = how.prepared, 1  # rows with which one process is: small networks need many
        if ready is not None:
            if attack.has_queries:
                ready.expect_queries()
            if not ways.drop and attack.passes == 1:
                ready.expect_staying()
            if ready.full is not None:
                problem, busy = dataclasses.replace(problem, full=ready.full), ready.full
        shares = dealt(_asked(attack, problem), count) if count > 1 else []
        if len(shares) < 2:
            return _searched(attack, problem, so_far, ways, ready)
        few = max(1, ways.batch_size // len(shares), min(busy, ways.batch_size))
        images = [share.any(1).nonzero()[:, 0] for share in shares]

        def task(asked: Tensor, rows: Tensor) -> Task[Outcome]:
            part = dataclasses.replace(problem, asked=asked).select(rows)
            before = so_far.afresh(rows)

            def work(told: OnStep) -> Outcome:
                own = dataclasses.replace(ways, batch_size=few, on_step=told)
                return _searched(attack, part, before, own, ready)

            return work

        tasks = [task(*share) for share in zip(shares, images, strict=True)]
        for rows, found in zip(images, in_processes(tasks, ways.on_step), strict=True):
            so_far.improve(rows, found)
        return so_far

    return run(
        chosen,
        problem,
        batch_size=how.batch_size,
        stop_when_broken=how.stop_when_broken,
        on_step=how.on_step,
        search=search,
    )


def _asked(attack: Attack, problem: Problem) -> Tensor:
    """(N, runs) the runs that are asked for."""
    if problem.asked is not None:
        return problem.asked
    runs = attack.runs(problem)
    return torch.ones(len(problem.x), runs, dtype=torch.bool, device=problem.x.device)


def _searched(
    attack: Attack, problem: Problem, so_far: Outcome, ways: Ways, ready: Prepared | None
) -> Outcome:
    """Searches in the prepared forms of the model, if any, and confirms in the model itself.

    A sample counts as broken only if the model itself is wrong on the point. What a search in low
    precision did not break, and what was not confirmed, is searched again in full precision. Where
    broken samples leave at once nearly all of the time goes to survivors, so that low precision
    would only add to it: there it is not used.
    """

    def searched(model: nn.Module, rows: Tensor) -> Outcome:
        here = dataclasses.replace(problem, model=model)
        return search(attack, here.select(rows), so_far.afresh(rows), ways)

    everyone = problem.rows_of()
    if ready is None or attack.passes > 1:
        return searched(problem.model, everyone)
    low = None if ways.drop else ready.low
    stages = [m for m in (low, ready.model, problem.model) if m is not None]
    out = searched(stages[0], everyone)
    for was_low, stage in zip([low is not None, False], stages[1:], strict=False):
        denied = _confirm(problem, out, ways.batch_size)
        again = denied | ~out.broken if was_low else denied
        if again.any():
            out.replace(again, searched(stage, again))
    return out


def _confirm(problem: Problem, out: Outcome, batch_size: int) -> Tensor:
    """(N,) successes that the model itself denies; they count no more."""
    denied = torch.zeros_like(out.broken)
    if not out.broken.any():
        return denied  # some networks cannot pass an empty batch
    for rows in out.broken.nonzero()[:, 0].split(batch_size):
        with torch.no_grad():
            logits = problem.model(out.x_adv[rows])
        out.meter.forward[rows] += 1
        denied[rows] = ~wrong(logits, problem.y[rows])
        out.margin[rows] = margin(logits, problem.y[rows])
    out.broken &= ~denied
    return denied


def pieces(x: Tensor, batch_size: int) -> list[slice]:
    """Cuts images into pieces that bound the memory of an attack, whatever their number."""
    length = piece_length(x.shape[1:], batch_size)
    return [slice(i, min(i + length, len(x))) for i in range(0, len(x), length)]


def piece_length(shape: Sequence[int], batch_size: int) -> int:
    """How many images of a shape are attacked at once."""
    return max(batch_size, MEMORY // (4 * max(1, math.prod(shape))))


def _within(on_step: OnStep | None, piece: slice, n: int) -> OnStep | None:
    """Progress of one piece as progress of the whole."""
    if on_step is None:
        return None
    return lambda share: on_step((piece.start + share * (piece.stop - piece.start)) / n)


def attack_name(chosen: Attack) -> str:
    """The registered name of an attack; it names its random streams."""
    return next(canonical(e.name) for e in ATTACKS if e.value is type(chosen))


def _joined(parts: list[Outcome], x: Tensor) -> Outcome:
    if not parts:
        none = Meter.of(0, x.device)
        return Outcome(x.clone(), none.flat, x.new_empty(0), none)
    meters = [p.meter for p in parts]
    names = [f.name for f in dataclasses.fields(Meter)]
    meter = Meter(*(torch.cat([getattr(m, name) for m in meters]) for name in names))
    return Outcome(
        torch.cat([p.x_adv for p in parts]),
        torch.cat([p.broken for p in parts]),
        torch.cat([p.margin for p in parts]),
        meter,
        parts[0].names,
    )


def check_images(x: Tensor) -> None:
    """Refuses what is not a batch of images in [0, 1]."""
    if not is_plain(x) or x.ndim != 4 or not x.is_floating_point():
        raise UserError(f"images must be a float tensor (N, C, H, W), but got {described(x)}")
    if len(x) == 0:
        return
    if x.numel() == 0:
        raise UserError(f"images must have pixels, but got {described(x)}")
    low, high = x.min().item(), x.max().item()
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"images must be in [0, 1], but they span [{low:.3g}, {high:.3g}]; divide by 255, and "
            "put mean and std normalisation into the model (its first layer)"
        )


def check_labels(x: Tensor, y: Tensor) -> None:
    if not is_plain(y) or y.shape != x.shape[:1] or y.dtype not in WHOLE:
        raise UserError(f"labels must be integers of shape ({len(x)},), but got {described(y)}")


def check_ids(x: Tensor, ids: Tensor | None) -> Tensor:
    """The sample ids; the positions if there are none."""
    if ids is None:
        return torch.arange(len(x))
    if not is_plain(ids) or ids.shape != x.shape[:1] or ids.dtype not in WHOLE:
        raise UserError(
            f"`ids` must have one whole number per image, {len(x)}, but got {described(ids)}"
        )
    return ids.long()


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_plain(values: object) -> bool:
    """Whether it is a tensor with its numbers in place: not sparse, not without storage."""
    return (
        isinstance(values, Tensor)
        and values.layout is torch.strided
        and not values.is_meta
        and not values.is_quantized
    )


def described(values: object) -> str:
    if not isinstance(values, Tensor):
        return type(values).__name__
    form = "" if is_plain(values) else " without plain numbers"
    return f"{values.dtype} {tuple(values.shape)}{form}"


def check_logits(model: nn.Module, x: Tensor, y: Tensor, num_classes: int | None = None) -> Tensor:
    """Refuses a model whose output cannot be class scores for these labels; returns them."""
    try:
        with torch.no_grad():
            out = model(x)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}"
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(f"the model must return logits (N, classes), but returned {got}")
    highest = int(y.max()) if len(y) else -1
    if num_classes is not None and out.shape[1] != num_classes:
        raise UserError(f"the data has {num_classes} classes, but the model returns {out.shape[1]}")
    if out.shape[1] < 2:
        raise UserError("the model must tell at least two classes apart, but returns one")
    if len(y) and int(y.min()) < 0:
        raise UserError(f"labels must be class numbers from 0 on, but there is {int(y.min())}")
    if highest >= out.shape[1]:
        raise UserError(f"there is a label {highest}, but the model returns {out.shape[1]} classes")
    return out


def check_gradients(chosen: Attack, problem: Problem) -> None:
    """Refuses an attack that needs gradients where the model gives none."""
    blind = [attack_name(part) for part in chosen.parts(problem) if part.needs_grad]
    if blind and not gives_gradients(problem.model):
        able = [e.name for e in ATTACKS if not e.value.needs_grad]
        raise UserError(
            f"attack {blind[0]} needs gradients, which this model does not give; the black-box "
            f"attacks are {', '.join(able)}"
        )


def verify(name: str, problem: Problem, x_adv: Tensor) -> None:
    """Every result of every attack passes here: right shape, finite, in the box, in the ball."""
    if x_adv.shape != problem.x.shape:
        raise RunError(f"attack {name} changed the shape to {tuple(x_adv.shape)}; this is a bug")
    if not len(x_adv):
        return
    low, high = torch.aminmax(x_adv)
    if not (low >= 0 and high <= 1):
        if not x_adv.isfinite().all():
            raise RunError(f"attack {name} returned values that are not finite; this is a bug")
        raise RunError(f"attack {name} left the box [0, 1]; this is a bug")
    if (excess := problem.threat.excess(problem.x, x_adv)).any():
        raise RunError(
            f"attack {name} left the ball {problem.threat} by {excess.max():.3g}; this is a bug"
        )
