"""Adversarial examples made on other models: the black-box evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from buttress.attacks.core import ATTACKS, Attack, State, check_norm
from buttress.attacks.freeze import device_of, frozen, on_device_of
from buttress.attacks.loop import run as run_loop
from buttress.attacks.problem import Problem, Seen
from buttress.errors import UserError


@ATTACKS.register("transfer", paper="arXiv:1605.07277", tags=("black_box", "needs_sources"))
@dataclass(frozen=True)
class Transfer(Attack):
    """The worst of the examples that an attack makes on each of the ``sources``.

    The model itself is only asked for its prediction, once for each source. Sources are networks
    with the same classes; in a suite they may be paths of runs. The attack on a source does not
    stop when that source is fooled: it goes on to the point with the largest margin, which
    transfers better.
    """

    needs_grad: ClassVar[bool] = False
    sources: Sequence[Any] = ()
    attack: str = "pgd"
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.sources, (str, nn.Module)) or not self.sources:
            raise UserError(
                "transfer needs `sources=[...]`, a list of networks or of paths of runs to make "
                f"the examples on, but got {self.sources!r}"
            )
        if ATTACKS.get(self.attack) is Transfer:
            raise UserError("the attack on the sources cannot be `transfer` itself")
        object.__setattr__(self, "inner", ATTACKS.create(self.attack, dict(self.args)))

    @property
    def length(self) -> int:
        return 0

    def runs(self, problem: Problem) -> int:
        return len(self.sources)

    def begin(self, problem: Problem, run: Tensor) -> State:
        check_norm(self.inner, problem.threat)  # type: ignore[attr-defined]
        x_t = problem.x.clone()
        for number, source in enumerate(self.sources):
            if not isinstance(source, nn.Module):
                raise UserError(f"a source must be a network; bt.load_model({source!r}) reads one")
            mine = run == number
            if not mine.any():
                continue
            part = problem.select(mine)
            x, y = on_device_of(source, part.x), part.y.to(device_of(source))
            part = replace(part, model=source, x=x, y=y, meter=None, rows=None, clean=None)
            with frozen(source):
                found = run_loop(self.inner, part).x_adv  # type: ignore[attr-defined]
            x_t[mine] = problem.select(mine).project(found.to(x_t))
        return State(x_t)

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        return state.x_t
