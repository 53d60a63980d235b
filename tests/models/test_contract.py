"""Every registered model keeps the contract: the small ones always, the published ones if slow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from buttress.models import create_model, list_models

TINY, MINI, PUBLISHED = (list_models(size) for size in ("tiny", "mini", "published"))

# Model -> why neither torch.compile nor torch.export can follow it.


def slow(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


EVERY = [*TINY, *MINI, *slow(PUBLISHED)]


def images(count: int = 2, channels: int = 3, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, size, size, generator=generator)


def apart(a: Tensor, b: Tensor) -> float:
    """The distance of two batches of logits, relative to their size."""
    return float((a.float() - b).norm() / b.norm())


@pytest.mark.parametrize("name", EVERY)
def test_every_trained_parameter_receives_a_gradient(name: str) -> None:
    model = create_model(name, seed=0)
    logits = model(images())
    torch.nn.functional.cross_entropy(logits, torch.arange(2)).backward()
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", EVERY)
def test_an_attack_sees_a_gradient_at_every_image(name: str) -> None:
    model, x = create_model(name, seed=0).eval(), images().requires_grad_()
    model(x)[:, 0].sum().backward()  # no cross-entropy: logits before training may saturate it
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().amax((1, 2, 3)).min() > 0


@pytest.mark.parametrize("name", EVERY)
def test_eval_is_deterministic_and_independent_of_the_batch(name: str) -> None:
    model, x = create_model(name, seed=0).eval(), images()
    with torch.no_grad():
        logits = model(x)
        assert torch.equal(model(x), logits)
        torch.testing.assert_close(model(x[:1]), logits[:1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [*TINY, *slow([*MINI, *PUBLISHED])])
def test_state_survives_safetensors(name: str, tmp_path: Path) -> None:
    model, other = create_model(name, seed=0).eval(), create_model(name, seed=1).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    with torch.no_grad():
        logits = model(images())
        assert not torch.equal(other(images()), logits)
        other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
        assert torch.equal(other(images()), logits)


@pytest.mark.parametrize("name", [*TINY, *slow([*MINI, *PUBLISHED])])
def test_half_precision_and_memory_layout_change_little(name: str) -> None:
    # Without support in the processor, bfloat16 takes a large network minutes per image.
    model, x = create_model(name, seed=0).eval(), images(1 if name in PUBLISHED else 8)
    with torch.no_grad():
        logits = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert apart(model(x), logits) < 0.1
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert apart(model(x.to(memory_format=torch.channels_last)), logits) < 1e-4


@pytest.mark.parametrize("name", [*TINY[::8], *slow([*TINY, *MINI, *PUBLISHED])])
def test_the_compiler_follows_the_whole_network(name: str) -> None:
    model, x = create_model(name, seed=0).eval(), images()
    torch.compiler.reset()
    with torch.no_grad():
        traced = torch.compile(model, backend="eager", fullgraph=True)(x)
        torch.testing.assert_close(traced, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (100, 3)])
def test_any_classes_and_channels(name: str, classes: int, channels: int) -> None:
    model = create_model(name, num_classes=classes, in_channels=channels, seed=0).eval()
    assert model(images(2, channels)).shape == (2, classes)
    assert (model.num_classes, model.in_channels, model.image_size) == (classes, channels, 32)


@pytest.mark.parametrize("name", TINY)
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    first, same, other = (create_model(name, seed=seed).state_dict() for seed in (7, 7, 8))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
