"""Convergence of attacks where the answer is known."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from buttress.analysis import ANALYSES, AnalysisNotApplicable, AnalysisSubject, analyze
from buttress.analysis.convergence import (
    ConvergenceResult,
    convergence,
    convergence_step,
)
from buttress.analysis.methods.attack_convergence import losses_per_step
from buttress.attacks.pgd import PGD
from buttress.data import Dataset
from buttress.engine import attack
from buttress.errors import UserError
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.threats.norm_ball import NormBall
from buttress.training import train
from buttress.training.loggers import create_logger
from conftest import Linear, images, small_net

EPS = 0.02


def linear_subject(classes: int = 2) -> AnalysisSubject:
    """Images far from the borders of the box, so that the ball is a whole cube."""
    x, y = images(10, classes=classes)
    data = Dataset.from_arrays(0.3 + 0.4 * x, y, classes=[str(k) for k in range(classes)])
    return AnalysisSubject(Linear(3 * 8 * 8, classes).eval(), data, NormBall("Linf", EPS))


def test_one_long_step_reaches_the_maximum_of_a_linear_model() -> None:
    subject = linear_subject()
    result = convergence(
        subject,
        short_steps=(1, 2),
        reference_steps=6,
        total_step_length=2.0,
        rel_step=2.0,
        seeds=2,
        limit=10,
    )
    (point,) = result.checkpoints
    # log(1 + exp(m + eps |w|_1)) with the margin m of the wrong class: the maximum over the cube.
    x, y, _ = subject.data.take(range(10))
    weight: Any = subject.model.weight
    with torch.no_grad():
        logits = subject.model(x)
        rise = EPS * (weight[0] - weight[1]).abs().sum()
        margin = logits[torch.arange(10), 1 - y] - logits[torch.arange(10), y]
        best = F.softplus(margin + rise).mean().item()
        clean = F.softplus(margin).mean().item()
    assert point.reference_loss == pytest.approx(best, rel=1e-5)
    assert point.clean_loss == pytest.approx(clean, rel=1e-5)
    assert [g.gap for g in point.gaps] == pytest.approx([0, 0], abs=1e-3)
    assert point.training_attack is None
    assert result.long_attack_gap == pytest.approx(0, abs=1e-3)
    assert result.converged_after == 1
    assert all(curve[1] == pytest.approx(best, rel=1e-5) for curve in result.curves)
    assert result.curves[0][0] != result.curves[1][0]  # other seeds start elsewhere


def test_a_step_that_is_too_short_has_the_gap_of_its_length() -> None:
    subject = linear_subject()
    result = convergence(
        subject,
        short_steps=(1,),
        reference_steps=8,
        total_step_length=0.5,
        rel_step=1.0,
        seeds=1,
        limit=10,
    )
    (gap,) = result.checkpoints[0].gaps
    long = result.checkpoints[0].reference_loss
    assert gap.loss < long
    assert gap.gap == pytest.approx(100 * (long - gap.loss) / long)
    # Eight steps of eps reach every corner; the long attack, half an eps in all, does not.
    assert result.long_attack_gap == pytest.approx(
        100 * (1 - long / result.curves[0][-1]), abs=1e-3
    )
    assert result.long_attack_gap > 1
    assert "PGD-k differs from PGD-8" in result.summary()
    assert "below the curve" in result.summary()


def test_the_points_along_a_long_attack_are_those_of_short_ones() -> None:
    model, (x, y) = small_net(), images(4)
    batch = Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)]).take(range(4))
    ball = NormBall("L2", 0.5)
    (long,) = losses_per_step(PGD(steps=5, rel_step=0.15), model, batch, ball, (3,))
    assert long.shape == (6, 4)
    for steps in (1, 3):
        (short,) = losses_per_step(PGD(steps=steps, rel_step=0.15), model, batch, ball, (3,))
        torch.testing.assert_close(short, long[: steps + 1])
    both = losses_per_step(PGD(steps=5, rel_step=0.15), model, batch, ball, (8, 3))
    torch.testing.assert_close(both[1], long)  # a seed means the same beside another one
    assert not torch.allclose(both[0], long)
    # On a rising loss the registered attack, which keeps the best point, ends in the same place.
    x_adv = attack("pgd", model, x, y, threat=ball, seed=3, ids=batch.ids, steps=5, rel_step=0.15)
    with torch.no_grad():
        best = F.cross_entropy(model(x_adv), y, reduction="none").double()
    assert (best - long[-1]).abs().max() < 0.05 * best.max()


def test_settled_is_the_step_after_the_last_one_that_is_off() -> None:
    assert convergence_step([0.0, 5.0, 0.5, 0.995, 1.0]) == 3
    assert convergence_step([1.0, 1.0]) == 0


def test_mistakes_and_models_without_gradients_are_told() -> None:
    subject = linear_subject()
    with pytest.raises(UserError, match="`seeds` must be an integer of at least 1"):
        ANALYSES.create("convergence", {"subject": subject, "seeds": 0})
    with pytest.raises(UserError, match="`short_steps`"):
        ANALYSES.create("convergence", {"subject": subject, "short_steps": ()})
    model: Any = subject.model
    model.has_gradients = False
    with pytest.raises(AnalysisNotApplicable, match="gradients"):
        convergence(subject)


def test_best_and_last_epoch_and_the_training_attack_of_a_run(tmp_path: Path) -> None:
    run = train("resnet_tiny", "digits", "quickstart-at", tmp_path / "r", limit=64,
                overrides=("epochs=2", "validation.limit=16"))  # fmt: skip
    args = {"short_steps": [1], "reference_steps": 3, "seeds": 1, "limit": 4}
    if run.summary["best_epoch"] == 2:  # make them differ
        shutil.copy(run.checkpoint("best"), run.checkpoint("last"))
        run.finish({**run.summary, "best_epoch": 1})
    result = analyze("convergence", run, args=args)
    assert isinstance(result, ConvergenceResult)
    assert [(c.name, c.epoch) for c in result.checkpoints] == [("best", 1), ("last", 2)]
    for point in result.checkpoints:
        assert point.training_attack is not None
        assert point.training_attack.loss > point.clean_loss
    assert (tmp_path / "r" / "analysis" / "convergence.svg").is_file()


def test_kept_epochs_are_looked_at_too(tmp_path: Path) -> None:
    run = train(
        "vit_tiny", "digits", "quickstart-at", tmp_path / "run", limit=64, device="cpu",
        overrides=("epochs=3", "validation.limit=16"), loggers=[create_logger("epochs")],
    )  # fmt: skip
    assert run.kept_epochs == [1, 2, 3]
    weights = [load_checkpoint(run.checkpoint(n))["model"] for n in (1, 3)]
    last = load_checkpoint(run.checkpoint("last"))["model"]
    assert all(torch.equal(weights[1][k], last[k]) for k in last)
    assert any(not torch.equal(weights[0][k], last[k]) for k in last)
    args = {"limit": 4, "seeds": 1, "reference_steps": 4, "short_steps": [1, 2]}
    result = analyze("convergence", run, args=args)
    assert isinstance(result, ConvergenceResult)
    assert sorted(c.epoch or 0 for c in result.checkpoints) == [1, 2, 3]
    losses = {c.epoch: c.clean_loss for c in result.checkpoints}
    assert len(set(losses.values())) == 3  # three networks, not one thrice
    assert "From epoch 1 to epoch 3" in result.summary()
