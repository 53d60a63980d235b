"""Making a model: normalisation, options, other sources, and mistakes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from buttress.errors import UnknownNameError, UserError
from buttress.models import Classifier, Normalize, create_model, load_model
from buttress.models._torchvision import import_torchvision, paused_garbage_collection

FILE = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
import neighbour

@dataclass
class Width:
    value: int

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))

def flexible(num_classes, hidden: int = 8, width: Width | None = None):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, hidden), nn.Linear(hidden, num_classes))

def demanding(where):
    return nn.Identity()

def ours(num_classes=10):
    from buttress.models import create_model
    return create_model("resnet_tiny", num_classes=num_classes, mean=0.5, std=0.25)

class Net(nn.Module):
    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.model = nn.Conv2d(3, num_classes, 32)

    def forward(self, x):
        return self.model(x).flatten(1)

def number():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("", encoding="utf-8")
    (tmp_path / "nets.py").write_text(FILE, encoding="utf-8")
    return tmp_path / "nets.py"


def test_normalisation_is_the_first_layer() -> None:
    mean, std = [0.4, 0.5, 0.6], [0.1, 0.2, 0.3]
    model = create_model("vit_tiny", mean=mean, std=std, seed=0).eval()
    x = torch.rand(2, 3, 32, 32)
    by_hand = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(model(x), model.net(by_hand))


def test_without_mean_and_std_images_enter_as_they_are() -> None:
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(Normalize()(x), x)


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [([0.5, 0.5], 1.0, "1 or 3 values"), (0.5, 0.0, "std > 0"), (0.5, [1, -1, 1], "std > 0")],
)
def test_impossible_normalisation(mean: object, std: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        create_model("resnet_tiny", mean=mean, std=std)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("name", ["resnet_tiny", "wrn_tiny", "vit_tiny", "pvt_v2_tiny"])
def test_activation_is_a_choice(name: str, activation: str) -> None:
    chosen = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}[activation]
    model = create_model(name, options={"activation": activation}, seed=0)
    kinds = {type(m) for m in model.modules() if isinstance(m, (nn.ReLU, nn.GELU, nn.SiLU))}
    assert kinds == {chosen}


def test_unknown_name_names_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="resnet_50"):
        create_model("resnet_51")


def test_a_name_of_timm_is_recognized() -> None:
    for make in (create_model, load_model):
        with pytest.raises(UnknownNameError, match="did you mean 'timm:resnet10t'"):
            make("resnet10t")


def test_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no option 'activaton'.*activation"):
        create_model("resnet_tiny", options={"activaton": "silu"})


def test_the_shape_is_no_option() -> None:
    with pytest.raises(UserError, match="no option 'num_classes'"):
        create_model("resnet_tiny", options={"num_classes": 3})


def test_option_of_the_wrong_kind_says_what_is_possible() -> None:
    with pytest.raises(UserError, match=r"'relu', 'gelu' or 'silu'.*got 'tanh'"):
        create_model("resnet_tiny", options={"activation": "tanh"})


@pytest.mark.parametrize(("name", "size"), [("vit_p4", 30), ("vit_tiny", 36), ("resnet_tiny", 4)])
def test_a_wrong_size_says_which_fit(name: str, size: int) -> None:
    with pytest.raises(UserError, match=rf"supports image_size .*and more.*image_size={size}"):
        create_model(name, image_size=size)


@pytest.mark.parametrize("what", ["num_classes", "image_size", "in_channels"])
def test_shapes_are_positive(what: str) -> None:
    with pytest.raises(UserError, match=f"{what} >= 1"):
        create_model("resnet_tiny", **{what: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["wrn_d1-1-1_w1-1-1", "WRN_d1_1_1_w1_1_1"])
def test_wide_resnet_by_stages(name: str) -> None:
    model = create_model(name, seed=0).eval()
    net: Any = model.net
    assert [len(stage) for stage in net.stages] == [1, 1, 1]
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_timm_model() -> None:
    model = create_model("timm:test_vit", num_classes=7, image_size=32, in_channels=1, seed=0)
    assert model.eval()(torch.rand(2, 1, 32, 32)).shape == (2, 7)


def test_timm_model_without_an_image_size_and_with_options() -> None:
    options = {"stem_type": "deep", "stem_width": 8}
    model = create_model("timm:test_resnet", options=options, seed=0).eval()
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_unknown_timm_model() -> None:
    with pytest.raises(UnknownNameError, match="convnext_tiny"):
        create_model("timm:convnext_tinny")


def test_timm_says_why_it_cannot_build() -> None:
    with pytest.raises(UserError, match="no_such"):
        create_model("timm:test_vit", options={"no_such": 1})


def test_function_in_a_file(file: Path) -> None:
    model = create_model(f"{file}:plain", seed=0)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), model.net(x))
    assert isinstance(model, Classifier)


def test_function_takes_the_shape_and_options(file: Path) -> None:
    model = create_model(f"{file}:flexible", num_classes=4, options={"hidden": 5})
    net: Any = model.net
    assert net[1].out_features == 5
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 4)


def test_class_in_a_file(file: Path) -> None:
    assert create_model(f"{file}:Net", num_classes=4)(torch.rand(2, 3, 32, 32)).shape == (2, 4)


def test_function_that_calls_us_is_not_wrapped_again(file: Path) -> None:
    model = create_model(f"{file}:ours", num_classes=4)
    assert model.name == "resnet_tiny"
    assert model.normalize.mean.flatten().tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        ("nothing", {}, "no function 'nothing'; it has: Width, plain, flexible"),
        ("number", {}, "must return a torch.nn.Module, but returned int"),
        ("plain", {"hidden": 3}, "no option 'hidden'; it has no options"),
        ("flexible", {"hidden": "many"}, "valid integer"),
        ("demanding", {}, "requires the option 'where'"),
    ],
)
def test_mistakes_with_a_file(
    file: Path, function: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        create_model(f"{file}:{function}", options=options)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        create_model(f"{tmp_path / 'absent.py'}:net")


def test_file_that_fails_names_its_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        create_model(f"{tmp_path / 'broken.py'}:net")


def test_garbage_is_collected_again_after_the_import() -> None:
    with paused_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), paused_garbage_collection():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_torchvision_is_imported_once_it_is_declared() -> None:
    assert import_torchvision() is None
