"""Adversarial examples made on other models: the black-box evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from buttress.attacks.core import ATTACKS, Attack, AttackState, check_attack_threat
from buttress.attacks.problem import ModelOutput, Problem
from buttress.errors import UserError
from buttress.models.eval_mode import eval_mode, model_device, to_model_device
from buttress.threats.core import SPACES, Space


@ATTACKS.register("transfer", paper="arXiv:1605.07277", tags=("black_box", "needs_sources"))
@dataclass(frozen=True)
class Transfer(Attack):
    """The worst of the examples that an attack makes on each of the ``sources``.

    The model itself makes one forward pass for each source. Sources are models
    with the same classes; in a suite they may be paths of runs. The attack on a source does not
    stop when that source is fooled: it continues to the point with the largest margin, which
    transfers better.
    """

    needs_grad: ClassVar[bool] = False
    spaces: ClassVar[tuple[Space, ...]] = SPACES
    sources: Sequence[Any] = ()
    attack: str = "pgd"
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.sources, (str, nn.Module)) or not self.sources:
            raise UserError(
                "transfer needs `sources=[...]`, a list of models or of paths of runs to make "
                f"the examples on, but got {self.sources!r}"
            )
        if ATTACKS.get(self.attack) is Transfer:
            raise UserError("the attack on the sources cannot be `transfer` itself")
        object.__setattr__(self, "inner", ATTACKS.create(self.attack, dict(self.args)))

    @property
    def max_steps(self) -> int:
        return 0

    def num_runs(self, num_classes: int) -> int:
        return len(self.sources)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        check_attack_threat(self.inner, problem.threat)  # type: ignore[attr-defined]
        x_t = problem.x.clone()
        for source_index, source in enumerate(self.sources):
            if not isinstance(source, nn.Module):
                raise UserError(f"a source must be a model; bt.load_model({source!r}) reads one")
            is_own_run = run_index == source_index
            if not is_own_run.any():
                continue
            source_problem = problem.select(is_own_run)
            x, y = (
                to_model_device(source, source_problem.x),
                source_problem.y.to(model_device(source)),
            )
            images = source_problem.images
            source_problem = replace(
                source_problem,
                model=source,
                x=x,
                y=y,
                images=None if images is None else to_model_device(source, images),
                counter=None,
                sample_rows=None,
                clean_logits=None,
            )
            with eval_mode(source):
                assert problem.run_attack is not None
                x_adv = problem.run_attack(self.inner, source_problem)  # type: ignore[attr-defined]
            x_t[is_own_run] = problem.select(is_own_run).project(x_adv.to(x_t))
        return AttackState(x_t)

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        return state.x_t
