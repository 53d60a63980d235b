"""A family is a table: each row becomes a factory with the options that the row names."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest
from torch import nn

from buttress.errors import UserError
from buttress.models import MODELS, create_model
from buttress.models.building_blocks import Activation, activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


@dataclass(frozen=True)
class SmallConfig:
    width: int
    dropout: float = 0.0
    activation: Activation = "relu"


def build_small(config: SmallConfig, shape: InputShape) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(shape.in_channels * shape.image_size**2, config.width),
        activation_layer(config.activation)(),
        nn.Dropout(config.dropout),
        nn.Linear(config.width, shape.num_classes),
    )


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> ModelFamily[SmallConfig]:
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))
    family = ModelFamily(
        "small",
        "arXiv:0000.00000",
        "hybrid",
        ImageSizes(4),
        build_small,
        options=("activation", "dropout"),
        published_shape={"num_classes": 1000},
    )
    family.register(
        Variant("small_one", SmallConfig(8, dropout=0.5), "eight units", published=0.03),
        Variant(
            "small_mini", SmallConfig(4), "four units", paper="arXiv:1111.11111", category="cnn"
        ),
        Variant(
            "small_tiny",
            SmallConfig(2),
            "two units",
            image_sizes=ImageSizes(8, multiple=8),
            options=("activation",),
        ),
    )
    return family


@pytest.mark.usefixtures("family")
def test_a_row_is_registered_with_what_it_and_its_family_say() -> None:
    one, mini, tiny = (MODELS.entry(f"small_{end}") for end in ("one", "mini", "tiny"))
    assert one.tags == ("hybrid", "small", "published")
    assert mini.tags == ("cnn", "small", "mini")
    assert tiny.tags == ("hybrid", "small", "tiny")
    assert (one.paper, mini.paper) == ("arXiv:0000.00000", "arXiv:1111.11111")
    assert (one.summary, one.metadata["published"]) == ("eight units", 0.03)
    assert one.metadata["published_shape"] == {"num_classes": 1000}
    assert (one.metadata["attention"], mini.metadata["attention"]) == ("tokens", "none")
    assert (4 in one.metadata["sizes"], 4 in tiny.metadata["sizes"]) == (True, False)
    assert one.metadata["config"] == SmallConfig(8, dropout=0.5)


@pytest.mark.usefixtures("family")
def test_options_are_typed_parameters_with_the_values_of_the_row() -> None:
    parameters = inspect.signature(MODELS.get("small_one")).parameters
    assert list(parameters) == ["num_classes", "image_size", "in_channels", "activation", "dropout"]
    assert (parameters["dropout"].default, parameters["activation"].default) == (0.5, "relu")
    net = create_model("small_one", options={"dropout": 0.25, "activation": "silu"}).net
    assert [type(layer) for layer in net.children()][2:4] == [nn.SiLU, nn.Dropout]
    assert net.get_submodule("3").p == 0.25
    with pytest.raises(UserError, match="'dropout' of model 'small_one'"):
        create_model("small_one", options={"dropout": "much"})


@pytest.mark.usefixtures("family")
def test_other_fields_of_the_configuration_are_no_options() -> None:
    with pytest.raises(UserError, match="has no option 'width'; available options: activation"):
        create_model("small_one", options={"width": 4})
    with pytest.raises(UserError, match="'small_tiny' has no option 'dropout'"):
        create_model("small_tiny", options={"dropout": 0.1})
    with pytest.raises(TypeError, match="width"):
        MODELS.get("small_one")(width=4)


def test_a_factory_takes_the_shape_by_position(family: ModelFamily[SmallConfig]) -> None:
    net = family.factory(SmallConfig(3))(7, 16, 1)
    shapes = [tuple(p.shape) for p in net.parameters()]
    assert shapes == [(3, 256), (3,), (7, 3), (7,)]
