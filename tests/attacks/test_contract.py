"""What every registered attack must keep, in every norm it takes."""

from __future__ import annotations

import copy
import inspect
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.attacks.core import create_attack
from buttress.attacks.losses import margin, probability_margin
from buttress.attacks.problem import Problem
from buttress.attacks.targets import TargetRule, choose_target
from buttress.engine.last_iterate import last_iterate
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Norm, NormBall
from conftest import Linear, attention_net, images, norms_of, small_net, thinned

EPS: dict[Norm, float] = {"Linf": 0.05, "L2": 0.5, "L1": 4.0}
CASES = [(name, norm) for name in ATTACKS.names() for norm in norms_of(name)]
every = pytest.mark.parametrize(("name", "norm"), CASES)
# Attacks of published protocols that are known to be weak or to depend on the batch are kept for
# replication; they owe the ball, the box and an untouched model, nothing more.
WEAK = ATTACKS.names("published_weak")
SOUND = [(name, norm) for name, norm in CASES if name not in WEAK]
sound = pytest.mark.parametrize(("name", "norm"), SOUND)


def with_argument(word: str) -> pytest.MarkDecorator:
    """The sound attacks that have an argument of this name."""
    cases = [(n, m) for n, m in SOUND if word in inspect.signature(ATTACKS.get(n)).parameters]
    return pytest.mark.parametrize(("name", "norm"), cases)


SHORT = {"steps": 5, "queries": 50, "restarts": 1, "targets": 3}
ENSEMBLES = ATTACKS.names("ensemble")
BLIND = ("transfer",)  # never sees the model it attacks, so it promises little


def brief(name: str, classes: int = 10, channels: int = 3) -> dict[str, Any]:
    """Arguments that make an attack short, and those it cannot do without."""
    known = inspect.signature(ATTACKS.get(name)).parameters
    args: dict[str, Any] = {k: v for k, v in SHORT.items() if k in known}
    if "sources" in known:
        args["sources"] = [small_net(classes, channels, seed=1).double()]
    return args


def score(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N,) how good a point is for the attacker: positive if it is misclassified."""
    with torch.no_grad():
        return margin(model(x), y)


def make(kind: str, classes: int, channels: int) -> nn.Module:
    if kind == "linear":
        return Linear(channels * 64, classes)
    return (small_net if kind == "convolution" else attention_net)(classes, channels)


@every
@pytest.mark.parametrize("kind", ["convolution", "attention", "linear"])
@pytest.mark.parametrize(
    ("classes", "channels", "n"), thinned([(2, 1, 1), (3, 3, 5), (10, 3, 7), (100, 1, 3)], 2)
)
def test_stays_in_ball_and_box_and_beats_clean_and_noise(
    name: str, norm: Norm, kind: str, classes: int, channels: int, n: int
) -> None:
    model = make(kind, classes, channels)
    x, y = images(n, channels, classes=classes)
    threat = NormBall(norm, EPS[norm])
    x_adv = bt.attack(name, model, x, y, threat=threat, **brief(name, classes, channels))
    assert x_adv.shape == x.shape
    assert 0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1
    assert float(threat.perturbation_size(x, x_adv).max()) <= threat.eps * (1 + 1e-5)
    gained = score(model, x_adv, y)
    assert (gained >= score(model, x, y)).all()
    if name in (*WEAK, *BLIND, "noise", "fgsm"):
        return  # they look at one point, or do not promise it
    noise = score(model, threat.random_start(x, SampleRNG(0, "other", torch.arange(n))), y)
    assert ((gained > 0) >= (noise > 0)).all()
    if not name.startswith("fab"):  # it looks for the boundary, not for the largest margin
        assert (gained >= noise)[gained < 0].all()


@with_argument("steps")
def test_more_steps_are_never_weaker(name: str, norm: Norm) -> None:
    """Not one sample less is broken; the margin of the others does not fall by much.

    It may fall a little: cross-entropy and ratios are not the margin.
    """
    model, (x, _) = small_net().double(), images(12)
    x, threat, scores = x.double(), NormBall(norm, EPS[norm] / 2), []
    y = model(x).argmax(1)
    for steps in (1, 3, 10) if name in ENSEMBLES else (1, 3, 10, 30):
        args = {**brief(name), "steps": steps}
        scores.append(score(model, bt.attack(name, model, x, y, threat=threat, **args), y))
    for less, more in itertools.pairwise(scores):
        assert ((more > 0) >= (less > 0)).all()
        assert more.clamp_max(0).mean() >= 1.25 * less.clamp_max(0).mean()
    assert scores[-1].clamp_max(0).mean() > scores[0].clamp_max(0).mean()


@with_argument("restarts")
def test_more_restarts_are_never_weaker(name: str, norm: Norm) -> None:
    model, (x, y) = small_net().double(), images(8)
    threat = NormBall(norm, EPS[norm] / 2)
    one, four = (
        score(model, bt.attack(name, model, x.double(), y, threat=threat, **args), y)
        for args in ({**brief(name), "restarts": r} for r in (1, 4))
    )
    assert (four >= one).all()
    if not name.startswith("fab"):
        assert (four > one).any()


@with_argument("restarts")
def test_same_seed_same_answer_other_seed_other_start(name: str, norm: Norm) -> None:
    model, (x, y) = small_net(), images(4)
    y = model(x).argmax(1) if name.startswith("fab") else y  # it only keeps a point that is wrong
    threat, args = NormBall(norm, 2 * EPS[norm]), brief(name)
    if name.startswith("fab"):
        args["restarts"] = 2
    a, b, c = (bt.attack(name, model, x, y, threat=threat, seed=s, **args) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@sound
@pytest.mark.parametrize("batch_size", thinned([7, 1, 256], 3))
def test_batches_change_nothing_in_float64(name: str, norm: Norm, batch_size: int) -> None:
    model, (x, y) = small_net().double(), images(16)
    x, ids = x.double(), torch.arange(40, 56)
    attack, threat = create_attack(name, **brief(name)), NormBall(norm, EPS[norm])
    whole = run_attack(attack, model, x, y, threat, ids=ids)
    assert not torch.equal(whole.x_adv, x), "the case must not be empty"
    parts = run_attack(
        attack, model, x, y, threat, ids=ids, options=AttackOptions(batch_size=batch_size)
    )
    # In an ensemble a broken sample leaves, and any of its runs may be the first to break it.
    same = ~whole.fooled if "ensemble" in ATTACKS.entry(name).tags else torch.full_like(y, 1) > 0
    torch.testing.assert_close(parts.x_adv[same], whole.x_adv[same], rtol=0, atol=1e-9)
    assert torch.equal(parts.fooled, whole.fooled)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    mixed = run_attack(attack, model, x[order], y[order], threat, ids=ids[order])
    torch.testing.assert_close(mixed.x_adv, whole.x_adv[order], rtol=0, atol=1e-9)


@sound
def test_dropping_broken_samples_changes_no_verdict(name: str, norm: Norm) -> None:
    model, (x, y) = small_net().double(), images(16)
    y = model(x.double()).argmax(1)  # all right without an attack
    args = {**brief(name), **({"steps": 10} if "steps" in brief(name) else {})}
    attack, threat = create_attack(name, **args), NormBall(norm, EPS[norm] / 2)
    whole = run_attack(attack, model, x.double(), y, threat)
    early = run_attack(
        attack, model, x.double(), y, threat, options=AttackOptions(stop_when_fooled=True)
    )
    assert torch.equal(whole.fooled, early.fooled)
    assert (early.counter.forward[early.fooled] <= whole.counter.forward[early.fooled]).all()
    if "steps" in brief(name):
        assert 0 < int(whole.fooled.sum()) < 16, "the case must have both kinds"
    if "steps" in brief(name) and name not in ENSEMBLES:  # they always drop
        assert (early.counter.forward < whole.counter.forward).any()
    wrong = model(early.x_adv).argmax(1) != y
    assert torch.equal(wrong, early.fooled)


@every
def test_nothing_of_the_model_is_touched(name: str, norm: Norm) -> None:
    model, (x, y) = small_net(), images(4)
    model.train()
    model[1].eval()  # a mixture of modes comes back as it was
    next(model.parameters()).requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    wants = [p.requires_grad for p in model.parameters()]
    x_before, rng = x.clone(), torch.get_rng_state()
    bt.attack(name, model, x, y, threat=NormBall(norm, EPS[norm]), **brief(name))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wants
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(x, x_before)
    assert torch.equal(torch.get_rng_state(), rng)


@every
def test_an_empty_batch_is_fine(name: str, norm: Norm) -> None:
    x, y = images(0)
    x_adv = bt.attack(name, small_net(), x, y, threat=NormBall(norm, EPS[norm]), **brief(name))
    assert x_adv.shape == x.shape


def test_mistakes_are_explained() -> None:
    model, (x, y) = small_net(), images(4)
    with pytest.raises(UserError, match=r"\[0, 1\].*divide by 255"):
        bt.attack("pgd", model, x * 255, y, threat="Linf:8/255")
    with pytest.raises(UserError, match="labels must be integers"):
        bt.attack("pgd", model, x, y[:2], threat="Linf:8/255")
    with pytest.raises(UserError, match="write 8/255 if"):
        bt.attack("pgd", model, x, y, threat="Linf:8")
    with pytest.raises(UserError, match="did you mean 'pgd'"):
        bt.attack("pdg", model, x, y, threat="Linf:8/255")
    with pytest.raises(UserError, match="unknown argument 'step'; accepted: steps"):
        bt.attack("pgd", model, x, y, threat="Linf:8/255", step=3)
    with pytest.raises(UserError, match="steps >= 1"):
        bt.attack("pgd", model, x, y, threat="Linf:8/255", steps=0)
    with pytest.raises(UserError, match="returns 3 classes"):
        bt.attack("pgd", small_net(3), x, y + 3, threat="Linf:8/255")


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
@pytest.mark.parametrize("eps", [1e-4, 0.5 / 255])
def test_rounding_is_not_taken_for_an_escape(norm: Norm, eps: float) -> None:
    model, (x, y) = small_net(), images(64)
    for name in ("pgd", "apgd-ce"):
        bt.attack(name, model, x, y, threat=NormBall(norm, eps), steps=5)


def test_more_mistakes_are_explained() -> None:
    model, (x, y) = small_net(), images(4)
    ball = "Linf:8/255"
    with pytest.raises(UserError, match="`loss` must be one of ce, margin, kl"):
        bt.attack("pgd", model, x, y, threat=ball, loss="nonsense")
    with pytest.raises(UserError, match="`target` must be one of none"):
        bt.attack("pgd", model, x, y, threat=ball, target="nonsense")
    with pytest.raises(UserError, match="gama takes Linf"):
        bt.attack("autoattack", model, x, y, threat="L2:1", version="custom", attacks=["gama"])
    with pytest.raises(UserError, match="gama takes Linf"):
        bt.attack("transfer", model, x, y, threat="L2:1", sources=[model], attack="gama")
    with pytest.raises(UserError, match="cannot be `transfer` itself"):
        bt.attack("transfer", model, x, y, threat=ball, sources=[model], attack="Transfer")
    with pytest.raises(UserError, match="must be a model"):
        bt.attack("transfer", model, x, y, threat=ball, sources=["runs/r1"])
    for wrong in ([3], [{"attack": 3}], "pgd"):
        with pytest.raises(UserError, match="attack"):
            bt.attack("autoattack", model, x, y, threat=ball, version="custom", attacks=wrong)
    with pytest.raises(UserError, match="one whole number per image"):
        bt.attack("pgd", model, x, y, threat=ball, ids=torch.arange(2))
    with pytest.raises(UserError, match="from 0 on"):
        bt.attack("pgd", model, x, y - 9, threat=ball)
    with pytest.raises(UserError, match="at least two classes"):
        bt.attack("apgd-t", small_net(1), x, y * 0, threat=ball)
    assert bt.attack("pgd", model, x, y.int(), threat=ball).shape == x.shape


class Sick(nn.Module):
    """Logits whose gradient is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)[:, :10]
        return torch.where(z > 2, z, torch.sqrt(z - z.detach()) + z.detach())


class Flat(nn.Module):
    """Logits that no small change of the image moves."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1)[:, :10] * 0.5).round() + torch.arange(10.0)


@pytest.mark.parametrize(
    ("name", "norm"), [(n, m) for n, m in SOUND if "white_box" in ATTACKS.entry(n).tags]
)
def test_results_stay_finite_where_gradients_vanish_or_explode(name: str, norm: Norm) -> None:
    x, y = images(4)
    for model, fact in ((Sick(), "non_finite"), (Flat(), "zero_gradient")):
        out = run_attack(create_attack(name, **brief(name)), model, x, y, NormBall(norm, 0.05))
        assert out.x_adv.isfinite().all()
        assert getattr(out.counter, fact).all(), "and it is reported"


def test_the_model_is_restored_after_an_exception() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = small_net(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 3:
                raise KeyboardInterrupt
            return self.inner(x)

    model, (x, y) = Failing().train(), images(4)
    with pytest.raises(KeyboardInterrupt):
        bt.attack("pgd", model, x, y, threat="Linf:8/255")
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


def test_a_gradient_that_was_never_asked_for_is_not_called_zero() -> None:
    model, (x, y) = small_net(), images(4)
    out = run_attack(create_attack("noise"), model, x, y, NormBall("Linf", 0.01))
    assert not out.counter.zero_gradient.any()


def test_passes_are_counted() -> None:
    model, (x, y) = small_net(), images(4)
    out = run_attack(create_attack("pgd", steps=7), model, x, y, NormBall("Linf", 0.01))
    assert out.counter.forward.tolist() == [9] * 4  # clean, 7 steps, last point
    assert out.counter.backward.tolist() == [7] * 4


@pytest.mark.parametrize("how", ["most_likely", "least_likely", "random", "each"])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_targets_are_never_the_label(how: TargetRule, classes: int) -> None:
    model, (x, y) = small_net(classes), images(40, classes=classes)
    problem = Problem(
        model,
        x,
        y,
        NormBall("Linf", 0.1),
        SampleRNG(0, "t", torch.arange(40)),
        clean_logits=model(x).detach(),
    )
    runs = [torch.full((40,), run) for run in range(classes)]
    chosen = torch.stack([choose_target(problem, how, run) for run in runs])
    assert (chosen != y).all()
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < classes
    if how == "each":  # all other classes in turn
        assert all(len(set(column[:-1])) == classes - 1 for column in chosen.T.tolist())
    if how == "random" and classes == 10:
        assert len(chosen.unique()) == 10


def test_a_targeted_attack_reaches_its_target() -> None:
    model, (x, y) = small_net(), images(12)
    streams, clean = SampleRNG(0, "t", torch.arange(12)), model(x).detach()
    problem = Problem(model, x, y, NormBall("Linf", 0.5), streams, clean_logits=clean)
    target = choose_target(problem, "most_likely", torch.zeros(12, dtype=torch.int64))
    for name, given in (("pgd", {"loss": "ce"}), ("pgd", {"loss": "margin"}), ("cw", {})):
        attack = create_attack(name, target="most_likely", rel_step=0.1, steps=40, **given)
        said = model(last_iterate(attack, problem)).argmax(1)
        assert (said == target).float().mean() > 0.8


def test_the_published_dense_l1_step_is_weaker_than_ours() -> None:
    model, (x, _) = small_net(), images(64)
    y = model(x).argmax(1)
    threat = NormBall("L1", 1.0)
    dense, sparse = (
        run_attack(create_attack(name), model, x, y, threat).fooled.float().mean()
        for name in ("pgd_dense_l1", "pgd")
    )
    assert sparse > dense


def test_the_hinge_on_the_batch_sum_stops_everyone() -> None:
    """What the per-sample hinge of `cw` avoids: one easy sample ends the attack on the others."""
    model, (x, _) = small_net().double(), images(8)
    x = x.double()
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 10  # wrong from the start, by a margin
    with torch.no_grad():
        last: Any = model[-1]
        last.bias[y[0]] -= 100.0
    threat = NormBall("Linf", 0.02)
    ours = run_attack(create_attack("cw"), model, x[1:], y[1:], threat).fooled
    alone = run_attack(create_attack("cw"), model, x, y, threat).fooled[1:]
    published = run_attack(create_attack("cw_batch_sum", start="clean"), model, x, y, threat)
    assert torch.equal(ours, alone)
    assert torch.equal(published.x_adv[1:], x[1:])


def test_guided_attack_relaxes_and_then_only_raises_the_margin() -> None:
    model, (x, y) = small_net(), images(4)
    attack = create_attack("gama", steps=20)
    streams, logits = SampleRNG(0, "g", torch.arange(4)), model(x).detach()
    problem = Problem(model, x, y, NormBall("Linf", 0.1), streams, clean_logits=logits)
    state = attack.init_state(problem, torch.zeros(4, dtype=torch.int64))
    assert torch.equal(
        (state.x_t - x).abs().amax((1, 2, 3)).round(decimals=4), torch.full((4,), 0.1)
    )
    first = attack.compute_loss(problem, state, logits)
    torch.testing.assert_close(first, probability_margin(logits, y))  # the guide is this very point
    moved = model(x * 0).detach()
    state.step += 19
    torch.testing.assert_close(
        attack.compute_loss(problem, state, moved), probability_margin(moved, y)
    )
    state.step *= 0
    attack.compute_loss(problem, state, logits)  # the guide of the first look
    state.step += 1
    assert (attack.compute_loss(problem, state, moved) > probability_margin(moved, y)).all()
