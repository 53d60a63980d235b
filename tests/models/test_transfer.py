"""Trained weights in models with other classes, image sizes and patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from torch import Tensor
from torch.nn import functional as F

from buttress.errors import UserError
from buttress.models import Classifier, create_model, list_models, transfer_weights

TINY = list_models("tiny")
STATISTICS: dict[str, Any] = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
POSITIONS = [("vit_tiny", 1), ("deit_tiny", 1), ("ceit_tiny", 1), ("cait_tiny", 0), ("cct_tiny", 0)]
Options = dict[str, int]


def trained(name: str, image_size: int = 32, options: Options | None = None) -> Classifier:
    """A model whose weights and statistics are not those of any fresh one."""
    model = create_model(name, image_size=image_size, options=options, seed=5, **STATISTICS)
    with torch.no_grad():
        model(torch.rand(4, 3, image_size, image_size))
        for parameter in model.parameters():
            parameter.add_(0.01)
    return model.eval()


def logits(model: Classifier) -> Tensor:
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.eval()(x)


def names(model: Classifier) -> set[str]:
    return set(model.net.state_dict())


@pytest.mark.parametrize("name", TINY)
def test_the_same_shape_is_loaded_whole(name: str) -> None:
    source, model = trained(name), create_model(name, seed=1, **STATISTICS)
    moved = transfer_weights(model, source.state_dict())
    assert set(moved.loaded) == names(model)
    assert moved.resized == moved.initialized == moved.unused == ()
    assert torch.equal(logits(model), logits(source))


@pytest.mark.parametrize("name", TINY)
def test_with_other_classes_only_the_classifier_is_new(name: str) -> None:
    source, model = trained(name), create_model(name, num_classes=7, seed=1)
    fresh = {n: v.clone() for n, v in model.net.state_dict().items()}
    moved = transfer_weights(model, source.state_dict())
    assert 1 <= len(moved.initialized) <= 2
    assert all(n.split(".")[0] in ("head", "fc") for n in moved.initialized)
    assert set(moved.loaded) == names(model) - set(moved.initialized)
    before, after = source.net.state_dict(), model.net.state_dict()
    assert all(torch.equal(after[n], before[n]) for n in moved.loaded)
    assert all(torch.equal(after[n], fresh[n]) for n in moved.initialized)
    assert logits(model).shape == (2, 7)


@pytest.mark.parametrize("name", [n for n in TINY if n != "mlp_mixer_tiny"])
def test_at_another_size_what_does_not_fit_is_listed(name: str) -> None:
    source, model = trained(name), create_model(name, image_size=64, seed=1)
    moved = transfer_weights(model, source.state_dict())
    assert set(moved.loaded) | set(moved.resized) | set(moved.initialized) == names(model)
    before = source.net.state_dict()
    own = model.net.state_dict()
    assert {n for n in own if own[n].shape != before[n].shape} == {
        *moved.resized,
        *moved.initialized,
    }
    assert bool(moved.resized) == (name in dict(POSITIONS))


@pytest.mark.parametrize(("name", "prefix"), POSITIONS)
@pytest.mark.parametrize(("old", "new"), [(32, 64), (64, 32)])
def test_positions_are_resized_and_prefix_tokens_kept(
    name: str, prefix: int, old: int, new: int
) -> None:
    source, model = trained(name, old), create_model(name, image_size=new, seed=1)
    moved = transfer_weights(model, source.state_dict())
    assert moved.resized == ("pos_embed",)
    assert moved.initialized == ()
    before: Any = source.net.pos_embed
    after: Any = model.net.pos_embed
    side = int((after.shape[1] - prefix) ** 0.5)
    expected = resample_abs_pos_embed(before, [side, side], num_prefix_tokens=prefix)
    assert torch.equal(after, expected)
    assert torch.equal(after[:, :prefix], before[:, :prefix])
    assert after.std() > 0


@pytest.mark.parametrize(("old", "new"), [(4, 8), (8, 4), (4, 16)])
def test_patches_are_resized(old: int, new: int) -> None:
    source = trained("deit_mini", options={"patch": old})
    model = create_model("deit_mini", options={"patch": new}, seed=1)
    moved = transfer_weights(model, source.state_dict())
    assert set(moved.resized) == {"pos_embed", "patch_embed.proj.weight"}
    assert moved.initialized == ()
    old_net: Any = source.net
    new_net: Any = model.net
    before, after = old_net.patch_embed.proj, new_net.patch_embed.proj
    assert torch.equal(after.weight, resample_patch_embed(before.weight, [new, new]))
    if new > old:  # a patch that is enlarged has the embedding it had
        x = torch.rand(2, 3, old, old)
        large = F.interpolate(x, size=(new, new), mode="bicubic", antialias=True)
        torch.testing.assert_close(after(large), before(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_an_xcit_keeps_every_weight_with_smaller_patches(patch: int) -> None:
    source = trained("xcit_tiny", options={"patch": 16})
    model = create_model("xcit_tiny", options={"patch": patch}, seed=1, **STATISTICS)
    moved = transfer_weights(model, source.state_dict())
    assert set(moved.loaded) == names(model)
    assert moved.resized == moved.initialized == ()
    net: Any = model.net
    grid = net.patch_embed(torch.rand(1, 3, 32, 32))[1]
    assert grid == (32 // patch, 32 // patch)


def test_kernels_that_overlap_are_not_resized() -> None:
    source, model = trained("resnet_tiny"), create_model("resnet_tiny", seed=1)
    state = source.net.state_dict()
    name = next(n for n, v in state.items() if v.ndim == 4 and v.shape[2] == 3)
    state[name] = F.pad(state[name], (1, 1, 1, 1))
    assert transfer_weights(model, state).initialized == (name,)


def test_normalisation_belongs_to_the_new_data() -> None:
    model = create_model("vit_tiny", mean=0.1, std=0.9, seed=1)
    moved = transfer_weights(model, trained("vit_tiny").state_dict())
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.1] * 3)
    assert model.normalize.std.flatten().tolist() == pytest.approx([0.9] * 3)
    assert moved.unused == ()


def test_prefixes_half_precision_and_a_missing_head() -> None:
    source, model = trained("vit_tiny"), create_model("vit_tiny", num_classes=3, seed=1)
    state = {f"module.{n}": v.half() for n, v in source.net.state_dict().items() if "head" not in n}
    moved = transfer_weights(model, {**state, "module.extra": torch.ones(2)})
    assert moved.initialized == ("head.weight", "head.bias")
    assert moved.unused == ("extra",)
    assert model.net.pos_embed.dtype == torch.float32
    assert str(moved).endswith("loaded, 2 initialized (head.weight, head.bias), 1 unused (extra)")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("resnet_tiny", "They contain .*conv.* the model has cls_token, "),
        ("deit_mini", "proj.weight has shape .48, 3, 4, 4. in the weights, but .32, 3, 8, 8. "),
    ],
)
def test_weights_of_another_architecture_are_refused(other: str, why: str) -> None:
    model = create_model("deit_tiny", num_classes=7, seed=1)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    with pytest.raises(UserError, match=f"do not match model 'deit_tiny': .*{why}.*Check --model"):
        transfer_weights(model, trained(other).state_dict())
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())


def test_a_network_made_of_its_image_size_is_refused_at_another() -> None:
    model = create_model("mlp_mixer_tiny", image_size=64, seed=1)
    with pytest.raises(
        UserError, match=r"\(192, 16\) in the weights, but \(192, 64\) .*image_size"
    ):
        transfer_weights(model, trained("mlp_mixer_tiny").state_dict())


def test_half_of_the_parameters_must_come() -> None:
    model = create_model("vit_tiny", num_classes=500, seed=1)  # most of it is the classifier
    state = trained("vit_tiny").net.state_dict()
    assert len(transfer_weights(model, state).initialized) == 2
    one_block = {n: v for n, v in state.items() if not n.startswith("blocks.0.")}
    assert any(n.startswith("blocks.0.") for n in transfer_weights(model, one_block).initialized)
    few = {n: v for n, v in one_block.items() if not n.startswith("blocks.1.mlp")}
    with pytest.raises(UserError, match="do not match"):
        transfer_weights(model, few)
