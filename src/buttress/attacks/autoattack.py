"""AutoAttack (Croce and Hein, arXiv:2003.01690; L1: arXiv:2103.01208): the standard ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

from buttress.attacks.apgd import APGDCE, APGDDLR, APGDT
from buttress.attacks.core import ATTACKS, Attack, EnsembleAttack, check_attack_threat
from buttress.attacks.fab import FAB, FABT
from buttress.attacks.square.attack import Square
from buttress.errors import UserError
from buttress.threats.core import Space, Threat

AutoAttackVersion = Literal["standard", "plus", "rand", "custom"]
RAND_EOT_SAMPLES = 20  # passes averaged in the version for randomized models


@ATTACKS.register("autoattack", paper="arXiv:2003.01690", tags=("ensemble",))
@dataclass(frozen=True)
class AutoAttack(EnsembleAttack):
    """Each attack runs on the samples that those before it did not fool, from the clean image.

    - standard: `apgd-ce`, `apgd-t` (9 targets), `fab-t` (9 targets), `square` (5000 queries). In L1
      `apgd-ce` has 5 restarts and `apgd-t` 5 targets.
    - plus: `apgd-ce` and `apgd-dlr` with 5 restarts, `fab` with 5 restarts, `square`, `apgd-t` and
      `fab-t` with 9 targets; in L1 without the larger balls.
    - rand, for randomized models: `apgd-ce` and `apgd-dlr`, all passes averaged over 20, or over
      ``eot_samples``.
    - custom: the names in ``attacks``, or mappings with ``attack`` and its arguments.

    `square` makes every query, as the reference does.

    ``steps`` and ``queries`` shorten the attacks of the first three, for tests. There are never
    more targets than other classes. Departure from the reference in rand: the prediction is the
    mean of the 20 passes, where the reference takes the last one.
    """

    record_identity: ClassVar[Mapping[str, str]] = {"square_queries": "all"}
    version: AutoAttackVersion = "standard"
    attacks: Sequence[str | Mapping[str, Any]] = ()
    steps: int = 100
    queries: int = 5000

    def __post_init__(self) -> None:
        if self.version not in ("standard", "plus", "rand", "custom"):
            raise UserError(
                f"`version` must be standard, plus, rand or custom, but got {self.version!r}"
            )
        if (self.version == "custom") != bool(self.attacks):
            raise UserError(
                "version custom needs `attacks=[...]`, and only it takes them, but got "
                f"version={self.version!r}, attacks={list(self.attacks)!r}"
            )
        if isinstance(self.attacks, str):
            raise UserError(f"`attacks` must be a list, but got {self.attacks!r}")
        budget = (self.steps, self.queries)
        if self.version == "custom" and budget != (AutoAttack.steps, AutoAttack.queries):
            raise UserError(
                "version custom takes `steps` and `queries` in the entries of `attacks`"
            )
        if self.version == "rand" and self.eot_samples == 1:
            object.__setattr__(self, "eot_samples", RAND_EOT_SAMPLES)
        samples = max(member.eot_samples for member in self.stage_attacks("Linf"))
        object.__setattr__(self, "eot_samples", max(self.eot_samples, samples))

    def stages(self, threat: Threat, num_classes: int) -> Sequence[Attack]:
        members = self.stage_attacks(threat.space)
        for member in members:
            check_attack_threat(member, threat)
        return members

    def stage_attacks(self, space: Space) -> tuple[Attack, ...]:
        """The attacks of this version in a space, in their order."""
        steps, is_l1 = self.steps, space == "L1"
        square, fab_t = Square(queries=self.queries), FABT(steps=steps)
        if self.version == "standard":
            ce = APGDCE(steps=steps, restarts=5 if is_l1 else 1)
            return ce, APGDT(steps=steps, targets=5 if is_l1 else 9), fab_t, square
        if self.version == "plus":
            ce, dlr = APGDCE(steps=steps, restarts=5), APGDDLR(steps=steps, restarts=5)
            untargeted_apgd = (replace(member, use_larger_eps=False) for member in (ce, dlr))
            apgd_t = APGDT(steps=steps, use_larger_eps=False)
            return (*untargeted_apgd, FAB(steps=steps), square, apgd_t, fab_t)
        if self.version == "rand":
            ce, dlr = APGDCE(steps=steps), APGDDLR(steps=steps)
            return tuple(
                replace(member, eot_samples=self.eot_samples, use_larger_eps=False)
                for member in (ce, dlr)
            )
        return tuple(_create_entry(entry) for entry in self.attacks)


def _create_entry(entry: str | Mapping[str, Any]) -> Attack:
    args = {"attack": entry} if not isinstance(entry, Mapping) else dict(entry)
    name = args.pop("attack", None)
    if not isinstance(name, str):
        raise UserError(f"an attack of a custom list needs `attack: NAME`, but got {entry!r}")
    attack = cast(Attack, ATTACKS.create(name, args))
    if isinstance(attack, AutoAttack):
        raise UserError("a custom list cannot hold another ensemble")
    return attack
