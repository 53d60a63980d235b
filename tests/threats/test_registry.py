"""What every registered threat model must keep, and every attack in each that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.attacks.core import AttackState, create_attack
from buttress.attacks.losses import margin
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import ModelOutput, Problem
from buttress.engine.cost import attack_passes
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.errors import RunError, UserError
from buttress.system.rng import SampleRNG
from buttress.threats import THREATS, SearchSet, Threat
from buttress.threats.parametric import ParametricThreat
from conftest import Linear, images, small_net

SIZE = 12
KINDS = [e.name for e in THREATS if "norm" not in e.tags]
LARGER = {"gabor": "60", "snow": "1", "patch": "4", "L0": "8", "color": "0.2"}  # to fool some
every_kind = pytest.mark.parametrize("kind", KINDS)
# Attacks that walk a path of their own; the others move in parameters as these do.
OWN = ("pgd", "apgd-ce", "square", "random_search", "grid", "sparse_pgd", "sigma_zero", "patch_pgd")
SHORT = {"steps": 5, "queries": 40, "restarts": 2, "targets": 3, "refine": 5, "angles": 5,
         "shifts": 3}  # fmt: skip


WEAK = ATTACKS.names("published_weak")  # of published protocols; one depends on the batch
ENSEMBLES = ATTACKS.names("ensemble")  # any run of theirs may be the first to fool an image
SEEDED = ("pgd", "apgd-ce", "random_search", "sparse_pgd")  # results differ from seed to seed
MAY_GAIN_NOTHING = ("sigma_zero", "fab", "fab-t")  # they keep a point only if it is misclassified
# Below snow and fog the image is paler, which lowers the margin of this model: one step, or an
# example of another model, may not make up for it.
MAY_NOT_MAKE_UP = {("snow", "fgsm"), ("snow", "transfer"), ("fog", "transfer")}


def threat_of(kind: str) -> Threat:
    usual = THREATS.get(kind).usual_budget(kind, SIZE)
    return Threat.parse(f"{kind}:{LARGER.get(kind, usual)}")


def brief(name: str, **more: Any) -> dict[str, Any]:
    known = inspect.signature(ATTACKS.get(name)).parameters
    args: dict[str, Any] = {k: v for k, v in {**SHORT, **more}.items() if k in known}
    if "sources" in known:
        args["sources"] = [small_net(size=SIZE, seed=1).double()]
    return args


def pairs(without: Sequence[str] = ()) -> list[Any]:
    """Every attack in every threat model; those that share a path are left to `make test-all`."""
    cases = [(k, a.name) for k in KINDS for a in ATTACKS if a.value.supports(threat_of(k))]
    slow = {False: (), True: (pytest.mark.slow,)}
    return [
        pytest.param(kind, name, marks=slow[name not in OWN])
        for kind, name in cases
        if name not in without
    ]


every_pair = pytest.mark.parametrize(("kind", "name"), pairs())


def case(n: int = 8) -> tuple[torch.nn.Module, Tensor, Tensor]:
    model, (x, _) = small_net(size=SIZE).double(), images(n, size=SIZE)
    return model, x.double(), model(x.double()).argmax(1)


@every_kind
@pytest.mark.parametrize("size", [8, 32, 224])
def test_threats_are_written_and_read(kind: str, size: int) -> None:
    usual = THREATS.get(kind).usual_budget(kind, size)
    threat = Threat.parse(f"{kind}:{usual}")
    assert Threat.parse(str(threat)) == threat
    assert threat.kind == kind
    assert str(threat) == f"{kind}:{usual}"
    assert threat.scaled(0).is_trivial
    assert not threat.is_trivial
    assert threat.scaled(2).eps == 2 * threat.eps
    assert THREATS.entry(kind).paper.startswith("arXiv:")
    assert threat.describe()


@every_kind
def test_the_image_itself_and_random_members_are_allowed(kind: str) -> None:
    threat, (x, _) = threat_of(kind), images(6, size=SIZE)
    problem = Problem.pose(torch.nn.Identity(), x, torch.zeros(6).long(), threat,
                           SampleRNG(0, "t", torch.arange(6)))  # fmt: skip
    points = problem.random_start(torch.arange(6))
    drawn = problem.images_at(points)
    assert not threat.excess(x, x, points).any()
    assert not threat.excess(x, drawn, points).any()
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1
    assert (drawn != x).flatten(1).any(1).all()
    assert threat.excess(x, (drawn * 0.9 + 0.05), points).all(), "others are not"
    noise = torch.full((6,), 0.5), problem.rng, torch.arange(7, 13)
    neighbor = problem.threat.random_neighbor(problem.x, points, *noise)
    assert not threat.excess(x, problem.images_at(neighbor), neighbor).any()
    assert (neighbor != points).flatten(1).any(1).all()
    again = problem.select(torch.tensor([4, 1])).random_start(torch.tensor([4, 1]))
    assert torch.equal(again, points[[4, 1]]), "draws belong to samples, not to batches"


@every_kind
def test_the_projection_is_idempotent_and_leaves_members(kind: str) -> None:
    threat, (x, _) = threat_of(kind), images(6, size=SIZE)
    if not isinstance(threat, SearchSet):
        assert isinstance(threat, ParametricThreat)
        x, threat = threat.center(x), threat.region
    far = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    once = threat.project(x, far)
    torch.testing.assert_close(threat.project(x, once), once, rtol=0, atol=1e-6)
    assert not threat.excess(x, once).any()


@pytest.mark.parametrize("kind", [k for k in KINDS if "parametric" in THREATS.entry(k).tags])
@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 8, 8), (3, 16, 20)])
def test_images_are_smooth_in_their_parameters(
    kind: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gabor noise has the gradient of a soft maximum; the less soft, the nearer to the exact one.
    monkeypatch.setattr("buttress.threats.gabor.SOFTNESS", 1e-5)
    threat = Threat.parse(f"{kind}:{THREATS.get(kind).usual_budget(kind, 12)}")
    assert isinstance(threat, ParametricThreat)
    source = torch.Generator().manual_seed(3)
    x = (0.3 + 0.4 * torch.rand(2, *shape, generator=source)).double()
    center = threat.center(x)
    point = (center + 0.1 * (torch.rand(center.shape, generator=source) - 0.5)).double()
    weight = torch.randn(x.shape, generator=source).double()
    variable = point.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad((weight * threat.apply(x, variable)).sum(), variable)
    step = 1e-6 * torch.randn(point.shape, generator=source).double()
    ahead, behind = (threat.apply(x, p) for p in (point + step, point - step))
    measured = (weight * (ahead - behind)).sum() / 2
    torch.testing.assert_close((grad * step).sum(), measured, rtol=1e-3, atol=1e-12)
    if kind in ("spatial", "flow", "color", "jpeg", "jpeg-l1", "jpeg-l2"):
        torch.testing.assert_close(threat.apply(x, center), x, rtol=0, atol=1e-12)


@every_pair
def test_attacks_stay_in_the_set_and_are_never_weaker_than_the_image(kind: str, name: str) -> None:
    model, x, y = case()
    threat, rng = threat_of(kind), torch.get_rng_state()
    attack = create_attack(name, **brief(name))
    out = run_attack(attack, model, x, y, threat)  # verifies membership
    assert torch.equal(torch.get_rng_state(), rng)
    with torch.no_grad():
        gained, clean = margin(model(out.x_adv), y), margin(model(x), y)
    assert (gained >= clean - 1e-12).all()
    if name not in MAY_GAIN_NOTHING and (kind, name) not in MAY_NOT_MAKE_UP:
        assert (gained > clean).any()
    declared = attack_passes(attack, threat, 10)
    assert (out.counter.forward <= declared.forward).all()
    assert (out.counter.backward <= declared.backward).all()


@pytest.mark.parametrize(("kind", "name"), pairs(without=(*ENSEMBLES, *WEAK)))
def test_batches_and_orders_change_nothing(kind: str, name: str) -> None:
    model, x, y = case(7)
    threat, attack = threat_of(kind), create_attack(name, **brief(name))
    ids, order = torch.arange(20, 27), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    whole = run_attack(attack, model, x, y, threat, ids=ids)
    options = AttackOptions(batch_size=3)
    parts = run_attack(attack, model, x[order], y[order], threat, ids=ids[order], options=options)
    torch.testing.assert_close(parts.x_adv, whole.x_adv[order], rtol=0, atol=1e-9)
    assert torch.equal(parts.fooled, whole.fooled[order])
    if name in SEEDED:
        other = run_attack(attack, model, x, y, threat, ids=ids, options=AttackOptions(seed=1))
        assert not torch.equal(other.x_adv, whole.x_adv)


def efforts() -> list[Any]:
    """Steps, queries or refinements, and restarts, of every attack that has them."""
    return [
        pytest.param(*p.values, argument, marks=p.marks)
        for p in pairs(without=(*ENSEMBLES, *MAY_GAIN_NOTHING))
        for argument in ("steps", "queries", "restarts", "refine")
        if argument in inspect.signature(ATTACKS.get(p.values[1])).parameters
    ]


@pytest.mark.parametrize(("kind", "name", "argument"), efforts())
def test_more_effort_is_never_weaker(kind: str, name: str, argument: str) -> None:
    model, x, y = case(10)
    scores = []
    for effort in (1, 60 if argument == "queries" else 12):
        args = brief(name, **{"steps": 8, argument: effort})
        x_adv = bt.attack(name, model, x, y, threat=threat_of(kind), **args)
        with torch.no_grad():
            scores.append(margin(model(x_adv), y))
    less, more = scores
    assert ((more > 0) >= (less > 0)).all()
    assert more.clamp_max(0).mean() >= less.clamp_max(0).mean() - 1e-12
    if (kind, name) == ("spatial", "square"):  # every start of three parameters is a corner
        return
    assert more.clamp_max(0).mean() > less.clamp_max(0).mean() or bool((more > 0).all())


@every_kind
def test_what_leaves_the_set_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = case(16)
    step = PGD.next_points

    def escape(self: PGD, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        return step(self, problem, state, output) + 0.6

    monkeypatch.setattr(PGD, "next_points", escape)
    with pytest.raises(RunError, match="pgd left"):
        bt.attack("pgd", model, x, y, threat=threat_of(kind), steps=3)


def test_an_attack_that_cannot_move_there_says_which_can() -> None:
    model, x, y = case(2)
    for name, threat, other in (
        ("autoattack", "patch:3", "patch_pgd"),
        ("sparse_pgd", "Linf:0.1", "apgd-ce"),
        ("grid", "flow:0.5", "square"),
        ("square", "L0:3", "sigma_zero"),
    ):
        with pytest.raises(UserError, match=f"attack {name} takes .*{other}"):
            bt.attack(name, model, x, y, threat=threat)


@pytest.mark.parametrize(
    ("text", "word"),
    [("L0:1.5", "whole number"), ("L0:4,colors", "L0:K,values"), ("patch:3,1", "patch:SIDE"),
     ("patch:a", "whole pixels"), ("spatial:30", "spatial:DEGREES,PIXELS"), ("flow:-1", "eps >= 0"),
     ("fog", "KIND:BUDGET"), ("rain:1", "one of .*snow")],
)  # fmt: skip
def test_mistakes_say_what_to_do(text: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        Threat.parse(text)


@every_kind
@pytest.mark.parametrize("name", ["pgd", "random_search", "noise"])
def test_a_size_of_zero_allows_no_change(kind: str, name: str) -> None:
    model, x, y = case(4)
    threat = threat_of(kind).scaled(0)
    assert torch.equal(bt.attack(name, model, x, y, threat=threat, **brief(name)), x)


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 10, 17), (1, 16, 9)])
@every_kind
def test_images_may_be_gray_and_need_not_be_square(kind: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(torch.nn.Flatten(), Linear(x[0].numel(), 10))
    y, entry = model(x).argmax(1), THREATS.entry(kind)
    for name in ("pgd", "random_search", entry.metadata.get("attack", "fast")):
        if ATTACKS.get(name).supports(threat_of(kind)):
            found = bt.attack(name, model, x, y, threat=threat_of(kind), **brief(name))
            assert found.shape == x.shape
            assert not torch.equal(found, x)


@pytest.mark.parametrize("text", ["patch:13", "patch:5,10,0"])
def test_a_patch_larger_than_the_image_is_refused(text: str) -> None:
    model, x, y = case(2)
    with pytest.raises(UserError, match="12"):
        bt.attack("patch_pgd", model, x, y, threat=text)
