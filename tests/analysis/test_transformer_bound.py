"""The attention block, and the bound term by term."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from buttress.analysis import ANALYSES
from buttress.analysis.methods.generalization_bound import (
    BlockNorms,
    BoundAttentionBlock,
    BoundSample,
    block_norms,
    bound_terms,
    images_needed,
    train_block,
)  # fmt: skip
from buttress.analysis.transformer_bound import (
    TransformerBoundResult,
    transformer_bound,
)  # fmt: skip
from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.system.progress import SilentProgress

NORMS = BlockNorms(inner_spectral=2.0, outer_spectral=3.0, inner_l1=5.0, outer_l1=7.0)
SAMPLE = BoundSample(count=100, mean_squared_norm=4.0, width=50, eps=0.1, delta=0.05)


def test_the_block_is_a_matrix_a_relu_and_a_matrix() -> None:
    block = BoundAttentionBlock(8, 2, 10, seed=3)
    x = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert block.inner_matrix().shape == (32, 64)
    by_matrices = (block.flatten_images(x) @ block.inner_matrix().T).relu() @ block.head.T
    assert torch.allclose(block(x), by_matrices, atol=1e-5)
    assert block.flatten_images(x).square().sum() == pytest.approx(
        float(x.mean(1).square().sum()), rel=1e-5
    )
    # Rows of a softmax sum to one: attention itself has the same l1 norm however sparse it is.
    both = block.inner_matrix().detach().abs().sum(), block.value.detach().abs().sum()
    assert float(both[0]) == pytest.approx(16 * float(both[1]))


def test_training_with_the_penalty_makes_the_norms_smaller_and_leaves_the_generator_alone() -> None:
    data = load_dataset("digits", "train", limit=200, image_size=8)
    before = torch.random.get_rng_state()
    made = []
    for penalty in (0.0, 3e-3):
        block = BoundAttentionBlock(8, 2, 10, seed=0)
        train_block(block, data, penalty=penalty, steps=60)
        x, y, _ = data.take(torch.arange(200))
        assert float((block(x).argmax(1) == y).float().mean()) > 0.6
        assert all(p.grad is None for p in block.parameters())
        made.append(float(block.l1_norm().detach()))
    assert made[1] < 0.8 * made[0]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_patch_must_divide_the_image() -> None:
    with pytest.raises(UserError, match="`patch` must divide"):
        BoundAttentionBlock(8, 3, 10, seed=0)


def test_the_terms_of_the_theorem() -> None:
    found = bound_terms(NORMS, SAMPLE, gamma=0.5, margin_fraction=0.25)
    frobenius = math.sqrt(100 * 4.0)
    c = ((5 / 2) ** (2 / 3) + (7 / 3) ** (2 / 3)) ** (3 / 2) * frobenius
    assert found == pytest.approx({
        "margin": 0.25,
        "4/n^1.5": 4 / 1000 / 0.5,
        "capacity": 60 * math.log(100) * math.log(100) / 100 * 2 * 3 * c / 0.5,
        "adversary": 2 * 0.1 * 5 * 7 / (0.5 * 10),
        "confidence": 3 * math.sqrt(math.log(40) / 200),
    })  # fmt: skip
    assert list(bound_terms(NORMS, replace(SAMPLE, eps=0.0), 0.5, 0.0))[3] == "adversary"
    assert bound_terms(NORMS, replace(SAMPLE, eps=0.0), 0.5, 0.0)["adversary"] == 0


@pytest.mark.parametrize("name", list(BlockNorms.model_fields))
def test_the_bound_grows_with_every_norm(name: str) -> None:
    larger = NORMS.model_copy(update={name: 1.1 * getattr(NORMS, name)})
    assert sum(bound_terms(larger, SAMPLE, 1.0, 0.0).values()) > sum(
        bound_terms(NORMS, SAMPLE, 1.0, 0.0).values()
    )


def test_norms_of_known_matrices() -> None:
    found = block_norms(torch.tensor([[3.0, 0.0], [0.0, -4.0]]), torch.ones(2, 2))
    assert found.inner_spectral == pytest.approx(4)
    assert found.outer_spectral == pytest.approx(2)
    assert (found.inner_l1, found.outer_l1) == (7, 4)


def test_how_many_images_would_be_enough() -> None:
    enough = images_needed(NORMS, SAMPLE, 1.0, 0.1)
    assert enough is not None
    at = [sum(bound_terms(NORMS, replace(SAMPLE, count=int(n)), 1.0, 0.1).values())
          for n in (enough / 1.11, enough)]  # fmt: skip
    assert at[0] >= 1 > at[1]
    assert images_needed(NORMS, SAMPLE, 1.0, 1.0) is None


def test_wrong_arguments_are_named() -> None:
    for args, word in (
        ({"penalties": (-1.0,)}, "penalties"),
        ({"gamma": 0.0}, "gamma"),
        ({"form": "round"}, "valid, printed"),
        ({"eps": 0.0}, "eps"),
    ):
        given = {"progress": SilentProgress(), "limit": 20, **args}
        with pytest.raises(UserError, match=word):
            ANALYSES.create("transformer_bound", given)


@pytest.fixture(scope="module")
def found() -> TransformerBoundResult:
    return transformer_bound(SilentProgress(), penalties=(0.0, 3e-3), eps=0.01, steps=80, limit=150)


def test_l1_makes_every_norm_and_the_bound_smaller(found: TransformerBoundResult) -> None:
    plain, sparse = found.blocks
    assert (
        sparse.norms.inner_l1 * sparse.norms.outer_l1 < plain.norms.inner_l1 * plain.norms.outer_l1
    )
    assert sparse.terms["adversary"] < plain.terms["adversary"]
    assert sparse.bound < plain.bound
    assert sum(plain.terms.values()) == pytest.approx(plain.bound)
    assert "above 1 and therefore vacuous" in found.summary()


def test_what_is_certified_withstands_the_attack(found: TransformerBoundResult) -> None:
    assert found.blocks[1].certified_accuracy > 0.1  # else the test says nothing
    for block in found.blocks:
        assert block.certified_accuracy <= block.robust_accuracy <= block.test_accuracy
        assert 0 < block.margin_change_lower <= block.margin_change


def test_far_more_margin_leaves_the_first_and_last_term(found: TransformerBoundResult) -> None:
    curve = found.blocks[0].curve
    assert curve.bounds[-1] == pytest.approx(1, abs=30)
    assert curve.bounds[0] > 1e4
    assert len(curve.gammas) == len(curve.bounds)
