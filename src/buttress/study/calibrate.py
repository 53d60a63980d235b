"""Times a short batch of each model here, where no finished run says how fast it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.allocator import keep_freed_memory
from buttress.attacks.freeze import frozen
from buttress.attacks.prepare import prepare
from buttress.errors import CorruptFile
from buttress.files import read_json, write_json
from buttress.progress import Progress
from buttress.records.spec import RunSpec
from buttress.study.pace import Pace, Timed, name_of
from buttress.study.work import device_for
from buttress.training.train import build

LONGEST = 1.0  # seconds that one timed batch may take
TIMES = 5
FILE = "pace.json"


def calibrate(
    pace: Pace, specs: Iterable[RunSpec], root: Path, device: str, progress: Progress
) -> None:
    """Times every model of which nothing is learnt; what was timed here before is kept."""
    where = device_for(device)
    machine = f"{where} {torch.cuda.get_device_name() if where == 'cuda' else ''}".strip()
    machine += f" {torch.get_num_threads()} threads"
    kept = _kept(root / FILE)
    known = {n: t for n, t in kept.get(machine, {}).items() if len(t) == len(Timed._fields)}
    kept[machine] = known
    wanted = {name_of(s): s for s in specs}
    learnt = {model for model, _ in pace.learnt}
    unknown = {n: s for n, s in wanted.items() if n not in known and n not in learnt}
    bar = progress.task("time models", len(unknown))
    for name, spec in unknown.items():
        known[name] = list(time_model(spec, where))
        bar.advance(1, name)
    bar.close()
    if unknown:
        write_json(root / FILE, kept)
    pace.timed.update((name, Timed(*known[name])) for name in wanted.keys() & known.keys())


def _kept(path: Path) -> dict[str, dict[str, list[float]]]:
    try:
        return read_json(path)
    except (CorruptFile, FileNotFoundError):
        return {}


def time_model(spec: RunSpec, device: str) -> Timed:
    """Seconds of one image, in the form of the network that attacks search in."""
    keep_freed_memory()
    model = build(spec).to(device)
    shape = (spec.in_channels, spec.image_size, spec.image_size)
    with frozen(model):
        n = _fitting(partial(_attack_step, model, shape), spec.recipe.batch_size)
        form: nn.Module = model
        if n == spec.recipe.batch_size:  # others are so slow that trying forms would take long
            made = prepare(model, _batch(model, shape, n)[0])
            made.expect_queries()
            form = made.model
        forward = _timed(partial(_pass, form, _batch(model, shape, n)[0])) / n
        grad = _timed(partial(_attack_step, form, shape, n)) / n
    model.train()
    n = max(n, 2)  # BatchNorm needs two
    return Timed(forward, grad, _timed(partial(_train_step, model, shape, n)) / n)


@torch.no_grad()
def _pass(model: nn.Module, x: Tensor) -> None:
    model(x)


def _attack_step(model: nn.Module, shape: tuple[int, ...], n: int) -> None:
    x, y = _batch(model, shape, n)
    x.requires_grad_(True)
    torch.autograd.grad(F.cross_entropy(model(x), y), x, allow_unused=True)


def _train_step(model: nn.Module, shape: tuple[int, ...], n: int) -> None:
    x, y = _batch(model, shape, n)
    F.cross_entropy(model(x), y).backward()
    model.zero_grad(set_to_none=True)


def _batch(model: nn.Module, shape: tuple[int, ...], n: int) -> tuple[Tensor, Tensor]:
    where = next(model.parameters()).device
    x = torch.linspace(0, 1, n * shape[0] * shape[1] * shape[2], device=where).reshape(n, *shape)
    return x, torch.zeros(n, dtype=torch.long, device=where)


def _fitting(step: Callable[[int], None], largest: int) -> int:
    """The largest batch up to the recipe's that takes no longer than allowed."""
    n = min(2, largest)
    step(n)  # the first pass also sets things up
    while n < largest and _once(partial(step, n)) * 2 < LONGEST:
        n = min(2 * n, largest)
    return n


def _timed(step: Callable[[], None]) -> float:
    """The middle of a few, after one that makes room."""
    first = _once(step)
    times = TIMES if first < LONGEST / TIMES else 1
    return statistics.median(_once(step) for _ in range(times))


def _once(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
