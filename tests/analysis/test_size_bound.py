"""The Lipschitz bound against depth and width: against a real network, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from buttress.analysis import ANALYSES
from buttress.analysis.methods.gaussian_bound import gaussian_bound
from buttress.analysis.size_bound import log10_bound, size_bound, wideresnet_layers
from buttress.errors import UserError
from buttress.models import create_model
from buttress.system.progress import SilentProgress

SIGMA = 0.05


def test_it_is_the_bound_of_the_layers_of_a_real_network() -> None:
    model = create_model("wrn_d1_2_1_w1_2_1", num_classes=10, image_size=32)
    total = []

    def add(layer: nn.Module, given: tuple[torch.Tensor], _: torch.Tensor) -> None:
        if isinstance(layer, nn.Linear) or layer.kernel_size == (3, 3):  # no shortcuts
            total.append(math.log10(gaussian_bound(layer, given[0].shape[1:])))  # type: ignore[arg-type]

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.constant_(layer.weight, SIGMA)
            layer.register_forward_hook(add)
    with torch.no_grad():
        model.eval()(torch.rand(1, 3, 32, 32))
    result = wideresnet_layers((1, 2, 1), (1, 2, 1))
    assert len(total) == len(result) == 10
    assert log10_bound(result, SIGMA) == pytest.approx(sum(total))


def test_steps_are_those_of_the_formula() -> None:
    result = size_bound(SilentProgress(), depths=(1, 2), widths=(1, 4), sigma=SIGMA)
    assert [one.direction for one in result.directions] == [
        f"{what} of stage {stage}" for what in ("depth", "width") for stage in (1, 2, 3)
    ]
    deeper, wider = result.directions[0], result.directions[3]
    layer = (34 + 32) * math.sqrt(160)  # a block has two of them
    assert deeper.smallest_step == pytest.approx(2 * math.log10(layer * SIGMA))
    assert deeper.sigma_needed == pytest.approx(1 / layer)
    inner = 4.0**4.5  # nine layers from one width to four times it, each by half of that in log
    assert 0 < wider.smallest_step < math.log10(inner * 4)
    assert wider.sigma_needed == 0


def test_whether_it_grows_depends_on_the_variance() -> None:
    result = size_bound(SilentProgress(), depths=(1, 3))
    assert all(one.smallest_step > 0 for one in result.directions)
    assert "grows in every direction" in result.summary()
    assert result.directions[3].smallest_step_he < 0  # its inputs make its weights smaller
    needed = max(one.sigma_needed for one in result.directions)
    less = size_bound(SilentProgress(), depths=(1, 3), widths=(4, 10), sigma=0.99 * needed)
    assert min(one.smallest_step for one in less.directions) < 0
    assert "does not grow with depth of stage 3" in less.summary()
    more = size_bound(SilentProgress(), depths=(1, 3), widths=(4, 10), sigma=1.01 * needed)
    assert min(one.smallest_step for one in more.directions) > 0


@pytest.mark.parametrize("args", [{"depths": (3,)}, {"widths": (0, 2)}, {"sigma": 0.0}])
def test_mistakes_are_named(args: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"above 0|positive integers"):
        ANALYSES.create("size_bound", {"progress": SilentProgress(), **args})
