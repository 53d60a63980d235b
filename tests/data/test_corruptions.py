from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

import plain_corruptions as plain
from buttress.data import CORRUPTIONS, corrupt, list_corruptions
from buttress.data.corruptions.blur import directional_blur, shuffle_pixels
from buttress.data.corruptions.core import severity_constants
from buttress.data.corruptions.digital import pixel_grid, random_affine_grid, sample_bilinear
from buttress.data.corruptions.filters import canny
from buttress.data.corruptions.weather import plasma_fractal
from buttress.errors import UnknownNameError, UserError
from buttress.results.suite_spec import SEVERITIES
from buttress.system.rng import SampleRNG

COMMON = {
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast"),
    *("elastic_transform", "pixelate", "jpeg_compression"),
}
EXTRA = {"speckle_noise", "gaussian_blur", "spatter", "saturate"}
# What stronger severities of these change is not the distance between pixels: elastic moves are
# finer, glass is smoother, frost is greyer, saturate has two ways to go.
DRAWN_FROST = "frost of crystals"
NOT_BY_DISTANCE = {"elastic_transform", "glass_blur", "frost", "saturate"}


def pictures(n: int, height: int = 32, width: int = 32, channels: int = 3, seed: int = 0) -> Tensor:
    """Soft shapes with noise, and a corner each of black, white and grey."""
    source = np.random.default_rng(seed)
    coarse = torch.from_numpy(source.random((n, channels, 5, 5)))
    x = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    x = (x + 0.05 * torch.from_numpy(source.standard_normal(x.shape))).clamp(0, 1)
    for level, place in ((0.0, 0), (1.0, 3), (0.4, 6)):
        x[:, :, place : place + 3, :4] = level
    return (x * 255).round().float() / 255


def photographs(n: int = 24) -> Tensor:
    """Pieces of a photograph that comes with scikit-learn, as (n, 3, 32, 32)."""
    image = Image.fromarray(load_sample_image("china.jpg")).resize((192, 128))
    whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    pieces = whole.unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4)
    return pieces.reshape(-1, 3, 32, 32)[:n].float() / 255


def as_bytes(x: Tensor) -> np.ndarray:
    return (x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def test_the_names() -> None:
    assert set(list_corruptions("common")) == COMMON
    assert set(list_corruptions("extra")) == EXTRA
    assert set(list_corruptions()) == COMMON | EXTRA
    assert "procedural" in CORRUPTIONS.entry("frost").metadata["note"]
    assert "else procedural crystals" in CORRUPTIONS.entry("frost").summary


@pytest.fixture
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A corruption; frost with and without its photographs."""
    if request.param == DRAWN_FROST:
        monkeypatch.setattr("buttress.data.corruptions.frost.photograph_folder", lambda: None)
    return str(request.param.removesuffix(" of crystals"))


@pytest.mark.parametrize("name", [*CORRUPTIONS.names(), DRAWN_FROST], indirect=True)
class TestContract:
    def test_form(self, name: str) -> None:
        x, ids = pictures(3), torch.tensor([5, 2**40, 7])
        before, state = x.clone(), torch.get_rng_state()
        for severity in SEVERITIES:
            out = corrupt(x, name, severity, ids)
            assert out.shape == x.shape
            assert out.dtype == x.dtype
            assert out.min() >= 0
            assert out.max() <= 1
            assert torch.equal((out * 255).round().div(255), out)
            assert not torch.equal(out, x)
        assert torch.equal(x, before)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("shape", [(3, 8, 8), (3, 40, 24), (3, 28, 70), (1, 28, 28)])
    def test_sizes_and_grey(self, name: str, shape: tuple[int, int, int]) -> None:
        channels, height, width = shape
        x = pictures(2, height, width, channels)
        if name == "saturate" and channels == 1:
            with pytest.raises(UserError, match="grayscale"):
                corrupt(x, name, 3, torch.arange(2))
            return
        for severity in (1, 5):
            assert corrupt(x, name, severity, torch.arange(2)).shape == x.shape

    @pytest.mark.parametrize("severity", [2, 5])
    def test_batches_and_order_change_nothing(
        self, name: str, severity: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x, ids = pictures(7), torch.tensor([4, 1, 9, 0, 77, 12, 3])
        whole = corrupt(x, name, severity, ids)
        order = torch.tensor([6, 2, 0, 5, 1, 3, 4])
        assert torch.equal(corrupt(x[order], name, severity, ids[order]), whole[order])
        assert torch.equal(corrupt(x[3:4], name, severity, ids[3:4]), whole[3:4])
        monkeypatch.setattr("buttress.data.corruptions.core.MAX_VALUES_PER_CHUNK", 2 * 3072)
        assert torch.equal(corrupt(x, name, severity, ids), whole)

    def test_chance_belongs_to_the_id_the_seed_and_the_severity(self, name: str) -> None:
        x = pictures(1).expand(2, -1, -1, -1)
        same = corrupt(x, name, 3, torch.tensor([8, 8]))
        assert torch.equal(same[0], same[1])
        other = corrupt(x, name, 3, torch.tensor([8, 9]))
        again = corrupt(x, name, 3, torch.tensor([8, 8]), seed=1)
        is_random = name not in plain.PLAIN
        assert torch.equal(same[0], other[1]) is not is_random
        assert torch.equal(same[0], again[0]) is not is_random

    def test_damage_grows_with_severity(self, name: str) -> None:
        x, ids = photographs(), torch.arange(24)
        apart = [float((corrupt(x, name, s, ids) - x).square().mean()) for s in SEVERITIES]
        if name in NOT_BY_DISTANCE:
            assert min(apart) > 1e-4
        else:
            assert apart == sorted(apart)
            assert apart[4] > 1.3 * apart[0]

    def test_both_kinds_have_five_severities(self, name: str) -> None:
        extra = CORRUPTIONS.entry(name).metadata
        assert len(extra["small"]) == len(extra["large"]) == 5
        assert severity_constants(name, 2, (64, 64)) == extra["small"][1]
        assert severity_constants(name, 2, (65, 64)) == extra["large"][1]


@pytest.mark.parametrize("size", [(32, 32), (72, 96)], ids=["small", "large"])
@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", plain.PLAIN)
def test_exact_against_the_formula(name: str, severity: int, size: tuple[int, int]) -> None:
    x = pictures(3 if max(size) == 32 else 1, *size, seed=severity)
    out = as_bytes(corrupt(x, name, severity, torch.arange(len(x))))
    expected = [plain.PLAIN[name](i, severity_constants(name, severity, size)) for i in as_bytes(x)]
    assert np.array_equal(out, np.stack(expected))


@pytest.mark.parametrize("name", ["pixelate", "jpeg_compression"])
def test_grey_images_are_stored_as_grey(name: str) -> None:
    x = pictures(2, channels=1)
    out = as_bytes(corrupt(x, name, 4, torch.arange(2)))[..., 0]
    constants = severity_constants(name, 4, (32, 32))
    expected = [plain.PLAIN[name](image[..., 0], constants) for image in as_bytes(x)]
    assert np.array_equal(out, np.stack(expected))


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_copies_as_the_published_loop_does(reach: int) -> None:
    source = torch.Generator().manual_seed(reach)
    x = torch.arange(2 * 20 * 23).view(2, 1, 20, 23)
    shifts = torch.randint(-reach, reach, (2, 2, 20, 23), generator=source)
    out = shuffle_pixels(x, shifts, reach)
    for row in range(2):
        # With a channel axis, x[h, w] is a view, as in the published code.
        image = x[row].permute(1, 2, 0).numpy()
        expected = plain.glass(image, shifts[row].numpy(), reach)
        assert np.array_equal(out[row].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("constants", [(6, 1), (9, 2.5), (10, 3)])
def test_motion_is_imagemagicks(constants: tuple[float, float]) -> None:
    x = pictures(4, 20, 24)
    degrees = torch.tensor([-45.0, 0.0, 13.7, -121.0])
    out = as_bytes(directional_blur(x.double(), *constants, degrees))
    for image, made, angle in zip(as_bytes(x), out, degrees.tolist(), strict=True):
        assert np.array_equal(made, plain.motion(image, *constants, angle))


@pytest.mark.parametrize("decay", [3, 1.75])
def test_clouds_are_midpoint_displacement(decay: float) -> None:
    u = torch.rand(3, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = plasma_fractal(16, decay, u).numpy()
    for row in range(3):
        assert np.allclose(made[row], plain.cloud(16, decay, u[row].numpy()), atol=1e-12)


def test_fog_is_the_formula() -> None:
    x, ids = pictures(2), torch.arange(2)
    u = SampleRNG(0, "corruption fog 4", ids).draw_uniform(torch.empty(2, 1024)).double()
    for row, made in enumerate(as_bytes(corrupt(x, "fog", 4, ids))):
        image = as_bytes(x)[row] / 255
        cloud = plain.cloud(32, 2, u[row].numpy())[..., None]
        expected = plain.cut_off((image + 1 * cloud) * image.max() / (image.max() + 1))
        assert np.array_equal(made, expected)


def test_elastic_maps_and_mirrors() -> None:
    """The corners come from where they were, and reading agrees with SciPy in both mirrors."""
    from scipy.ndimage import map_coordinates

    streams = SampleRNG(0, "x", torch.arange(3))
    places = random_affine_grid(32, 32, 2.56, streams)
    moved = torch.tensor([[26, 26], [26, 6], [6, 6]]) + 2.56 * (
        2 * streams.draw_fractions(6, "corners").view(3, 3, 2) - 1
    )
    for row in range(3):
        u, v = moved[row].T.numpy()
        result = [map_coordinates(places[row, ..., k].numpy(), [v, u], order=1) for k in (0, 1)]
        assert np.allclose(np.stack(result, 1), [[26, 26], [26, 6], [6, 6]], atol=1e-9)
    x = pictures(1, 12, 17).double()
    wide = pixel_grid(12, 17) * 2.3 - 9.4
    for mode, at_centres in (("mirror", True), ("reflect", False)):
        made = sample_bilinear(x, wide[None], at_centers=at_centres)[0, 1].numpy()
        rows, columns = wide[..., 1].numpy(), wide[..., 0].numpy()
        expected = map_coordinates(x[0, 1].numpy(), [rows, columns], order=1, mode=mode)
        assert np.allclose(made, expected, atol=1e-9)


def test_canny_keeps_weak_edges_only_beside_strong_ones() -> None:
    images = np.zeros((3, 16, 16))
    images[0, :, 8:] = 200  # a strong edge
    images[1, :, 8:] = 20  # 80 > 50, but nothing above 150 to hold on to
    images[2, :, 8:] = np.linspace(20, 60, 16)[:, None]  # weak at the top, strong below
    result = canny(images, 50, 150)
    assert result[0].sum(1).tolist() == [1] * 16
    assert set(np.nonzero(result[0])[1]) <= {7, 8}
    assert not result[1].any()
    assert result[2].any(1).all()


class TestDistributions:
    """Noise on plain grey images; cutting off fractions lowers a mean by half a level."""

    half = 0.5 / 255

    def of(self, name: str, severity: int, level: float) -> Tensor:
        x = torch.full((60, 3, 32, 32), round(level * 255) / 255)
        return corrupt(x, name, severity, torch.arange(60)).double() - x + self.half

    @pytest.mark.parametrize(("severity", "sigma"), [(1, 0.04), (5, 0.1)])
    def test_gaussian(self, severity: int, sigma: float) -> None:
        off = self.of("gaussian_noise", severity, 0.5)
        assert abs(off.mean()) < 4 * sigma / math.sqrt(off.numel())
        assert off.std() == pytest.approx(sigma, rel=0.01)

    @pytest.mark.parametrize(("severity", "photons"), [(1, 500), (5, 50)])
    def test_shot(self, severity: int, photons: float) -> None:
        off = self.of("shot_noise", severity, 0.4)
        sigma = math.sqrt(0.4 / photons)
        assert abs(off.mean()) < 4 * sigma / math.sqrt(off.numel()) + 1e-4
        assert off.std() == pytest.approx(sigma, rel=0.02)

    def test_speckle(self) -> None:
        for level in (0.2, 0.5):
            off = self.of("speckle_noise", 3, level)
            assert off.std() == pytest.approx(round(level * 255) / 255 * 0.12, rel=0.01)

    def test_impulse(self) -> None:
        out = self.of("impulse_noise", 5, 0.4) + 0.4 - self.half
        for value in (0.0, 1.0):
            share = float(((out - value).abs() < 1e-3).double().mean())
            assert share == pytest.approx(0.035, rel=0.05)
        assert (out[:, 0] > 0.99).logical_xor(out[:, 1] > 0.99).any()  # each channel for itself


@pytest.mark.parametrize(
    ("x", "severity", "ids", "words"),
    [
        (pictures(2), 0, torch.arange(2), "from 1 to 5, but got 0"),
        (pictures(2), True, torch.arange(2), "from 1 to 5, but got True"),
        (pictures(2), 3, torch.arange(3), r"ids must have shape \(2,\)"),
        (pictures(2)[0], 3, torch.arange(3), "shape"),
        (pictures(2)[:, :2], 3, torch.arange(2), "1 or 3 channels"),
        (torch.rand(2, 3, 7, 9), 3, torch.arange(2), "at least 8 pixels"),
        (pictures(2) * 255, 3, torch.arange(2), r"\[0, 1\]"),
        (pictures(2) * math.nan, 3, torch.arange(2), r"\[0, 1\]"),
        (pictures(2).byte(), 3, torch.arange(2), "floating point"),
    ],
)
def test_mistakes_are_explained(x: Tensor, severity: int, ids: Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        corrupt(x, "fog", severity, ids)


def test_an_unknown_name_is_explained() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'fog'.*buttress list corruptions"):
        corrupt(pictures(1), "fogg", 1, torch.arange(1))
