"""Losses on logits that can be worked out by hand."""

from __future__ import annotations

import pytest
import torch

from buttress.attacks.losses import dlr, kl_divergence, margin, probability_margin, targeted_dlr

Z = torch.tensor([[4.0, 3.0, 1.0, 0.0, -2.0], [0.0, 1.0, 5.0, 3.0, 2.0]])
Y = torch.tensor([0, 1])  # right, wrong


def test_margin() -> None:
    assert margin(Z, Y).tolist() == [-1.0, 4.0]
    p = Z.softmax(1)
    expected = torch.stack([p[0, 1] - p[0, 0], p[1, 2] - p[1, 1]])
    torch.testing.assert_close(probability_margin(Z, Y), expected)


def test_ratio_divides_by_the_first_less_the_third() -> None:
    assert dlr(Z, Y).tolist() == pytest.approx([-1 / 3, 4 / 3])
    torch.testing.assert_close(dlr(10 * Z + 7, Y), dlr(Z, Y))  # no scale, no shift
    assert dlr(Z[:, :2], Y).tolist() == [-1.0, -1.0]  # two classes: the margin


def test_targeted_ratio_divides_by_the_first_less_the_mean_of_third_and_fourth() -> None:
    target = torch.tensor([1, 3])
    assert targeted_dlr(Z, Y, target).tolist() == pytest.approx([-1 / 3.5, 2 / 3.5])
    three = targeted_dlr(Z[:, :3], Y, torch.tensor([1, 2]))
    assert three.tolist() == [-1.0, 4.0]  # fewer than four classes: the difference


def test_divergence_is_zero_at_home_and_positive_elsewhere() -> None:
    torch.testing.assert_close(kl_divergence(Z, Z), torch.zeros(2))
    p, q = Z.softmax(1), Z.flip(1).softmax(1)
    torch.testing.assert_close(kl_divergence(Z.flip(1), Z), (p * (p / q).log()).sum(1))
