"""Attacks as users call them: `attack` by name, and objects like ``bt.attacks.PGD(eps=8/255)``.

The objects are made from the registry, so that a new attack has one without another line.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn

from buttress.attacks.core import (
    ATTACKS,
    Attack,
    check_attack_threat,
    check_positive,
    create_attack,
)
from buttress.engine.checks import as_image_batch, as_label_batch
from buttress.engine.options import AttackOptions
from buttress.engine.randomness import NOISE_IMAGES, choose_eot_samples
from buttress.engine.result import AttackResult
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.models.eval_mode import to_model_device
from buttress.registry import RegistryEntry, close_names_text, normalize_name
from buttress.system.signatures import explain_arguments
from buttress.threats.arguments import threat_from_arguments
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NormBall

AUTO = "auto"  # in place of `eot_samples`
CALL = "attack(model, images, labels); of a dataset: attack(model, data.images, data.labels)"
# Names of arguments in other libraries, and what they are called here.
FOREIGN_ARGUMENTS = {
    "n_iter": "steps", "nb_iter": "steps", "num_steps": "steps", "max_iter": "steps",
    "iters": "steps", "n_restarts": "restarts", "num_restarts": "restarts",
    "num_random_init": "restarts", "n_queries": "queries", "n_target_classes": "targets",
    "random_start": "start", "rand_init": "start", "step_size": "alpha", "eps_iter": "alpha",
    "eps_step": "alpha", "abs_stepsize": "alpha", "rel_stepsize": "rel_step",
    "eps_iter_size": "alpha", "stepsize": "alpha", "eot_iter": "eot_samples", "bs": "batch_size",
    "epsilon": "eps", "epsilons": "eps", "threat_model": "norm", "ord": "norm", "p": "norm",
}  # fmt: skip
# Arguments that have no name here, and what to do in place of them.
HINTS = {
    "device": "an attack runs where the model is; use model.to(device)",
    "model": "an attack is made without a model, which is passed when it is called",
    "targeted": "pass target='least_likely' or another target of `pgd`",
    "verbose": "an attack prints nothing",
    "clip_min": "images are always in [0, 1]", "clip_max": "images are always in [0, 1]",
    "bounds": "images are always in [0, 1]",
}  # fmt: skip
# Attacks of other libraries under other names, and what to write here.
FOREIGN_ATTACKS = {
    "apgd": "APGDCE, or AutoAttack for the ensemble", "aa": "AutoAttack",
    "bim": "PGD(eps=8/255, start='clean')", "ifgsm": "PGD(eps=8/255, start='clean')",
    "pgdl2": "PGD(eps=0.5, norm='L2')", "l2pgd": "PGD(eps=0.5, norm='L2')",
    "linfpgd": "PGD(eps=8/255, norm='Linf')", "l1pgd": "PGD(eps=12, norm='L1')",
    "projectedgradientdescent": "PGD(eps=8/255, norm='Linf')",
    "projectedgradientdescentpytorch": "PGD(eps=8/255, norm='Linf')",
    "fastgradientmethod": "FGSM(eps=8/255)", "ffgsm": "FGSM(eps=8/255)",
    "autoprojectedgradientdescent": "APGDCE(eps=8/255)", "squareattack": "Square(eps=8/255)",
    "deepfool": "FAB (minimum norm), or bt.minimum_norms(model, data)",
    "carliniwagnerl2": "CW(eps=0.5, norm='L2')", "carlinil2method": "CW(eps=0.5, norm='L2')",
    "l2carliniwagnerattack": "CW(eps=0.5, norm='L2')", "multiattack": "a suite of bt.evaluate",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, repr=False)
class ConfiguredAttack:
    """An attack with its arguments and its threat model; call it with a model and images."""

    attack: Attack
    threat: Threat
    seed: int = 0
    batch_size: int = 256
    measure_noise: bool = False  # choose `eot_samples` for each model

    @explain_arguments(CALL, HINTS)
    def __call__(self, model: nn.Module, x: Any, y: Any, *, ids: Any = None) -> Tensor:
        """Adversarial examples (N, C, H, W) for images ``x`` in [0, 1] with labels ``y``.

        Tensors, numpy arrays and lists are accepted; ``ids`` are permanent sample ids.
        """
        return self.run(model, x, y, ids=ids).x_adv

    @explain_arguments(CALL, HINTS)
    def run(self, model: nn.Module, x: Any, y: Any, *, ids: Any = None) -> AttackResult:
        """The examples with success (``fooled``), margin and passes of each sample."""
        attack, options = self.attack, AttackOptions(self.seed, self.batch_size)
        if self.measure_noise:
            x = as_image_batch(x)
            xs = to_model_device(model, x[:NOISE_IMAGES])
            ys = as_label_batch(x, y)[:NOISE_IMAGES].to(xs.device)
            samples = choose_eot_samples(model, xs, ys, self.seed)
            attack = dataclasses.replace(attack, eot_samples=samples)
        return run_attack(attack, model, x, y, self.threat, ids=ids, options=options)

    def __getattr__(self, name: str) -> Any:
        title = "an attack" if name == "attack" else type(self.attack).__name__
        raise AttributeError(
            f"{title} has no attribute {name!r}; its arguments are set when it is made, and it is "
            "called with model, images and labels: x_adv = attack(model, x, y)"
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the attack that are not its defaults."""
        return {
            f.name: value
            for f in dataclasses.fields(self.attack)
            if not _is_default(f, value := getattr(self.attack, f.name))
        }

    def __repr__(self) -> str:
        changed = [f"{name}={value!r}" for name, value in self.arguments.items()]
        changed += ["eot_samples='auto'"] if self.measure_noise else []
        arguments = ", ".join([f"threat={str(self.threat)!r}", *changed])
        return f"{type(self.attack).__name__}({arguments})"


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    return bool(field.default is not dataclasses.MISSING and field.default == value)


@explain_arguments("bt.attack('pgd', model, x, y, threat='Linf:8/255')")
def attack(  # noqa: PLR0913 - the public call
    name: str,
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    threat: str | Threat | None = None,
    eps: str | float | None = None,
    norm: str | None = None,
    seed: int = 0,
    ids: Any = None,
    batch_size: int = 256,
    **args: Any,
) -> Tensor:
    """Adversarial examples for ``x``, inside the threat's set and [0, 1].

    Args:
        name: a registered attack; ``buttress list attacks`` shows all.
        model: any model from [0, 1] images to logits.
        x: (N, C, H, W) images in [0, 1]: a tensor, a numpy array or a list.
        y: (N,) labels.
        threat: like ``Linf:8/255`` or ``patch:5``.
        eps: in place of ``threat``, with ``norm``.
        norm: Linf, L2, L1 ...; if not given, the first that the attack takes, mostly Linf.
        seed: with ``ids`` it decides all randomness.
        ids: (N,) permanent sample ids; the positions in ``x`` if not given.
        batch_size: affects speed and memory, not the examples.
        args: arguments of the attack, such as ``steps``. All attacks take ``eot_samples``: how many
            passes of a randomized model are averaged at each point; ``"auto"`` measures it.
            Attacks with a ``rel_step`` also take ``alpha``, the step size itself: rel_step * eps.
    """
    if not isinstance(name, str):
        raise UserError(
            f"the name of an attack comes first, then the model, but got {type(name).__name__}; "
            "e.g. bt.attack('pgd', model, x, y, threat='Linf:8/255')"
        )
    check_argument_names(name, args)
    chosen_threat = _choose_threat(name, threat, eps, norm)
    configured = configure_attack(name, chosen_threat, args, seed=seed, batch_size=batch_size)
    return configured.run(model, x, y, ids=ids).x_adv


def configure_attack(
    name: str, threat: Threat, args: Mapping[str, Any], *, seed: int = 0, batch_size: int = 256
) -> ConfiguredAttack:
    """An attack by name with its threat model; arguments and threat are checked here."""
    check_positive(batch_size=batch_size)
    measure_noise = args.get("eot_samples") == AUTO
    given = {k: v for k, v in args.items() if not (k == "eot_samples" and measure_noise)}
    instance = create_attack(name, **_resolve_step_size(name, threat, given))
    check_attack_threat(instance, threat)
    return ConfiguredAttack(instance, threat, seed, batch_size, measure_noise)


def _choose_threat(
    name: str, threat: str | Threat | None, eps: str | float | None, norm: str | None
) -> Threat:
    """The threat model; an eps without norm is in the first that the attack takes."""
    if threat is None and eps is not None and norm is None:
        cls = ATTACKS.get(name)
        norm = (cls.kinds or cls.spaces)[0]
    return threat_from_arguments(threat, eps, norm)


def check_argument_names(name: str, args: Mapping[str, Any]) -> None:
    """Raise on arguments that are called otherwise here, with what to write."""
    known = [f.name for f in dataclasses.fields(ATTACKS.get(name))]
    accepted = [*known, "eps", "norm", "batch_size", *(["alpha"] if "rel_step" in known else [])]
    for argument in args:
        head = f"attack {name!r} has no argument {argument!r}"
        ours = FOREIGN_ARGUMENTS.get(argument)
        if ours in accepted and argument not in known:
            one = "; several sizes: bt.accuracy_curve" if argument == "epsilons" else ""
            raise UserError(f"{head}; here it is called `{ours}`{one}")
        if argument in HINTS and argument not in known:
            raise UserError(f"{head}: {HINTS[argument]}")


def _resolve_step_size(name: str, threat: Threat, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with ``alpha``, an absolute step size, as ``rel_step``."""
    known = [f.name for f in dataclasses.fields(ATTACKS.get(name))]
    if "alpha" not in args or "rel_step" not in known:
        return dict(args)
    alpha, rest = args["alpha"], {k: v for k, v in args.items() if k != "alpha"}
    if "rel_step" in rest:
        raise UserError("the step size is given once: as `alpha`, or as `rel_step` = alpha / eps")
    is_number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not is_number or not isinstance(threat, NormBall) or threat.eps == 0:
        raise UserError(
            f"`alpha` must be a step size in a norm ball of eps > 0, but got {alpha!r} in "
            f"{threat}; pass `rel_step`, the step size relative to eps"
        )
    return {**rest, "rel_step": alpha / threat.eps}


def attack_factory(public_name: str) -> Callable[..., ConfiguredAttack]:
    """``bt.attacks.NAME``: by the name of the class (``PGD``) or of the attack (``CW``)."""
    wanted = _letters(public_name)
    for entry in ATTACKS:
        if wanted in (_letters(entry.name), _letters(entry.value.__name__)):
            return _make_factory(entry.name)
    names = [entry.value.__name__ for entry in ATTACKS]
    ours = FOREIGN_ATTACKS.get(wanted)
    guess = f"; here it is {ours}" if ours else close_names_text(public_name, names)
    raise AttributeError(f"module 'buttress.attacks' has no attack {public_name!r}{guess}")


def _letters(name: str) -> str:
    return normalize_name(name).replace("_", "")


@cache
def _make_factory(name: str) -> Callable[..., ConfiguredAttack]:
    """The function that makes objects of one attack, with the signature of its arguments."""
    entry = ATTACKS.entry(name)
    title = entry.value.__name__

    def factory(
        *positional: Any,
        threat: str | Threat | None = None,
        eps: str | float | None = None,
        norm: str | None = None,
        seed: int = 0,
        batch_size: int = 256,
        **args: Any,
    ) -> ConfiguredAttack:
        if positional:
            given = ", ".join(type(value).__name__ for value in positional)
            raise UserError(
                f"{title} takes arguments by name, and the model when it is called: "
                f"bt.attacks.{title}(eps=8/255, norm='Linf')(model, x, y), but got {given}"
            )
        check_argument_names(name, args)
        chosen_threat = _choose_threat(name, threat, eps, norm)
        return configure_attack(name, chosen_threat, args, seed=seed, batch_size=batch_size)

    factory.__name__ = factory.__qualname__ = title
    factory.__module__ = "buttress.attacks"
    factory.__doc__ = _describe(entry)
    factory.__signature__ = _signature(entry.value, factory)  # type: ignore[attr-defined]
    return factory


def _signature(cls: type[Attack], factory: Callable[..., Any]) -> inspect.Signature:
    own = inspect.signature(factory)
    threat_arguments = [own.parameters[k] for k in ("eps", "norm", "threat")]
    arguments = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(cls).parameters.values()]
    step = [p for p in arguments if p.name == "rel_step"]
    alpha = [p.replace(name="alpha", default=None, annotation="float | None") for p in step]
    running = [own.parameters[k] for k in ("seed", "batch_size")]
    parameters = [*threat_arguments, *arguments, *alpha, *running]
    return own.replace(parameters=parameters)


def _describe(entry: RegistryEntry[type[Attack]]) -> str:
    paper = f"\n\nPaper: {entry.paper}" if entry.paper else ""
    return f"""{inspect.getdoc(entry.value)}{paper}

Use: ``x_adv = bt.attacks.{entry.value.__name__}(eps=8/255, norm="Linf")(model, x, y)``

``eps`` and ``norm``, or ``threat`` ("Linf:8/255"), are the threat model; ``alpha``, where an attack
has a ``rel_step``, is the step size itself: rel_step * eps. With ``seed`` and the ids of the images
all randomness is decided; ``batch_size`` changes speed and memory only.
"""
