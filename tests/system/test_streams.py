"""Random numbers that belong to samples."""

from __future__ import annotations

import torch

from buttress.system.rng import SampleRNG, derive_seed, splitmix64

MASK = (1 << 64) - 1


def splitmix(value: int) -> int:
    """The finaliser of splitmix64 in plain integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_mixing_whole_batches_is_splitmix64() -> None:
    ids = torch.tensor([0, 1, 2, 2**62, 2**63 - 1, -1])
    assert [v & MASK for v in splitmix64(ids).tolist()] == [
        splitmix(v & MASK) for v in ids.tolist()
    ]


def test_draws_are_pinned_for_ever() -> None:
    streams = SampleRNG(0, "pgd", torch.tensor([7, 50_000]))
    assert derive_seed(0, "pgd", 0) == 15784384112352193452
    assert streams.draw_integers(1000, "crop").tolist() == [541, 292]
    noise = streams.draw_uniform(torch.empty(2, 2))
    torch.testing.assert_close(noise, torch.tensor([[0.7379929, 0.081505], [0.4940691, 0.581699]]))


def test_fractions_are_the_sequence_of_splitmix64() -> None:
    streams = SampleRNG(0, "pgd", torch.tensor([7, 50_000]))
    found = streams.draw_fractions(3, "box")
    for key, row in zip(streams.sample_keys("box").tolist(), found.tolist(), strict=True):
        states = [(key + step * 0x9E3779B97F4A7C15) & MASK for step in range(3)]
        assert row == [(splitmix(state) >> 11) / 2**53 for state in states]
    torch.testing.assert_close(streams.draw_fractions(1, "box"), found[:, :1], rtol=0, atol=0)


def test_fractions_are_even() -> None:
    found = SampleRNG(0, "x", torch.arange(10_000)).draw_fractions(3, "w")
    assert found.min() >= 0
    assert found.max() < 1
    counts = torch.histc(found.float(), bins=10, min=0, max=1)
    assert (counts - 3000).abs().max() < 250
    assert (torch.corrcoef(found.T) - torch.eye(3)).abs().max() < 0.05


def test_integers_are_even() -> None:
    counts = SampleRNG(0, "x", torch.arange(30_000)).draw_integers(3, "w").bincount()
    assert (counts - 10_000).abs().max() < 400


def test_a_draw_depends_on_seed_purpose_restart_and_id_alone() -> None:
    like, ids = torch.empty(3, 4), torch.tensor([5, 6, 7])
    base = SampleRNG(0, "a", ids).draw_normal(like)
    assert torch.equal(SampleRNG(0, "a", ids.flip(0)).draw_normal(like), base.flip(0))
    for other in (SampleRNG(1, "a", ids), SampleRNG(0, "b", ids), SampleRNG(0, "a", ids + 1)):
        assert not torch.equal(other.draw_normal(like), base)
    assert not torch.equal(SampleRNG(0, "a", ids).draw_normal(like, restart=1), base)
