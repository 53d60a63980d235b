"""MixUp and CutMix: pairs, weights, and the labels that follow from them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from buttress.data import Augmentation, Mixing
from buttress.data.augment.mixing import cutmix_box, draw_partners
from buttress.system.rng import SampleRNG

MIXUP, CUTMIX = Augmentation(mixup=0.8), Augmentation(cutmix=1.0)
BOTH = Augmentation(mixup=0.8, cutmix=1.0)


def images(n: int = 12) -> Tensor:
    return torch.rand(n, 3, 16, 12, generator=torch.Generator().manual_seed(0))


def streams(ids: Tensor, seed: int = 0) -> SampleRNG:
    return SampleRNG(seed, "mix", ids)


def mixed(how: Augmentation, x: Tensor, ids: Tensor, epoch: int = 0) -> tuple[Tensor, Mixing]:
    out, mixing = how.mix(x, streams(ids), epoch)
    assert mixing is not None
    return out, mixing


def test_mixup_is_the_weighted_sum() -> None:
    x = images()
    weights = []
    for epoch in range(20):
        out, (partner, weight) = mixed(MIXUP, x, torch.arange(12), epoch)
        w = weight.view(-1, 1, 1, 1)
        torch.testing.assert_close(out, w * x + (1 - w) * x[partner])
        assert len(set(weight.tolist())) == 1
        weights.append(weight[0].item())
        assert out.min() >= 0
        assert out.max() <= 1
    assert len(set(weights)) == 20


def test_cutmix_weighs_by_the_exact_area_kept() -> None:
    x, kept = images(), []
    for epoch in range(40):
        out, (partner, weight) = mixed(CUTMIX, x, torch.arange(12), epoch)
        own, other = (out == x).all(1), (out == x[partner]).all(1)
        assert bool((own ^ other).all())  # each pixel is from one of the two, whole
        assert torch.equal(own.flatten(1).float().mean(1), weight)
        assert torch.equal(own, own[:1].expand_as(own))
        rows, columns = other[0].any(1).nonzero(), other[0].any(0).nonzero()
        if len(rows):
            box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
            assert other[0].sum() == box
        kept.append(weight[0].item())
    assert max(kept) > 0.9
    assert min(kept) < 0.4


def test_the_window_has_the_share_drawn_for_it() -> None:
    assert cutmix_box(0.75, (0.5, 0.5), (16, 12)) == (slice(4, 12), slice(3, 9))
    assert cutmix_box(0.75, (0.0, 0.999), (16, 12)) == (slice(0, 4), slice(8, 12))
    assert cutmix_box(0.0, (0.5, 0.5), (16, 12)) == (slice(0, 16), slice(0, 12))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 8.0])
def test_weights_are_beta(alpha: float) -> None:
    x = torch.zeros(2, 1, 1, 1)
    how = Augmentation(mixup=alpha)
    result = torch.tensor(
        [mixed(how, x, torch.tensor([i, i + 9]))[1].weight[0] for i in range(1000)]
    )
    assert abs(result.mean() - 0.5) < 0.03
    assert result.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.15)


def test_both_take_turns() -> None:
    x, cuts = images(6), 0
    for epoch in range(300):
        out, (partner, _) = mixed(BOTH, x, torch.arange(6), epoch)
        cuts += bool(((out == x) | (out == x[partner])).all())
    assert 115 < cuts < 185


@pytest.mark.parametrize("how", [MIXUP, CUTMIX, BOTH])
def test_the_draw_belongs_to_seed_epoch_and_the_batch(how: Augmentation) -> None:
    x, ids = images(), torch.randint(2**62, (12,), generator=torch.Generator().manual_seed(3))
    out, mixing = mixed(how, x, ids)
    again, mixing_again = mixed(how, x, ids)
    assert torch.equal(out, again)
    assert torch.equal(mixing.partner, mixing_again.partner)
    assert torch.equal(mixing.weight, mixing_again.weight)
    assert not torch.equal(mixed(how, x, ids, 1)[0], out)
    assert not torch.equal(how.mix(x, streams(ids, seed=1))[0], out)
    other = ids.clone()
    other[-1] += 1
    assert mixed(how, x, other)[1].weight[0] != mixing.weight[0]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    assert torch.equal(mixed(how, x[order], ids[order])[0], out[order])


def test_nobody_is_their_own_partner() -> None:
    for n in (2, 3, 50):
        partner = draw_partners(streams(torch.arange(n)))
        assert sorted(partner.tolist()) == list(range(n))
        assert bool((partner != torch.arange(n)).all())


def test_inputs_stay_and_bytes_become_floats() -> None:
    x = (images() * 255).byte()
    before = x.clone()
    for how in (MIXUP, CUTMIX):
        out, _ = mixed(how, x, torch.arange(12))
        assert out.dtype == torch.float32
        assert torch.equal(out, how.mix(x / 255, streams(torch.arange(12)))[0])
        assert torch.equal(x, before)
    values = images()
    mixed(CUTMIX, values, torch.arange(12))
    assert torch.equal(values, images())


def test_nothing_to_mix() -> None:
    x = images()
    out, mixing = Augmentation(random_erasing=0.5).mix(x, streams(torch.arange(12)))
    assert mixing is None
    assert torch.equal(out, x)
    assert BOTH.mix(x[:0], streams(torch.arange(0))).mixing is None
    alone, (partner, _) = mixed(BOTH, x[:1], torch.tensor([5]))
    assert partner.tolist() == [0]
    torch.testing.assert_close(alone, x[:1])
