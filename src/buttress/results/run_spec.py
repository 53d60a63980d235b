"""Specification of a run: model, dataset, recipe, augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from buttress.config import ComponentSpec, Spec
from buttress.errors import UnknownNameError
from buttress.registry import normalize_name, unknown_name_message
from buttress.results.model_code import short_model_name
from buttress.system.files import digest
from buttress.threats.core import Threat

Probability = Annotated[float, Field(ge=0, le=1)]


def _check_range(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"`0 < low <= high` must hold, but got low={bounds[0]}, high={bounds[1]}")
    return bounds


Range = Annotated[tuple[float, float], AfterValidator(_check_range)]


class ResizedCropSpec(Spec):
    scale: Range = (0.08, 1.0)  # fraction of the area
    ratio: Range = (3 / 4, 4 / 3)  # width by height
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"


class ColorJitterSpec(Spec):
    """Factors from 1 - s to 1 + s; hue as a fraction of the color circle."""

    brightness: NonNegativeFloat = 0.0
    contrast: NonNegativeFloat = 0.0
    saturation: NonNegativeFloat = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0


class RandAugmentSpec(Spec):
    """RandAugment; the defaults are those of timm's ``rand-m9-mstd0.5-inc1``."""

    num_ops: PositiveInt = 2
    magnitude: Annotated[float, Field(ge=0, le=10)] = 9.0
    std: NonNegativeFloat = 0.5
    probability: Probability = 0.5  # that a sampled operation is applied


def _parse_color_jitter(raw: object) -> object:
    """Expand a number to brightness, contrast and saturation; zero is off."""
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        return raw
    return {"brightness": raw, "contrast": raw, "saturation": raw} if raw else None


class AugmentationSpec(Spec):
    """Data augmentation: fields, a name of `list_augmentations`, or null for none."""

    crop_padding: NonNegativeInt = 0  # pixels, before a random crop to the original size
    horizontal_flip: bool = False
    resized_crop: ResizedCropSpec | None = None
    rotation: NonNegativeFloat = 0.0  # degrees, either way
    color_jitter: Annotated[ColorJitterSpec | None, BeforeValidator(_parse_color_jitter)] = None
    auto_augment: Literal["none", "cifar10", "imagenet"] = "none"  # the policy
    rand_augment: RandAugmentSpec | None = None
    random_erasing: Probability = 0.0
    mixup: NonNegativeFloat = 0.0  # alpha; 0 is off
    cutmix: NonNegativeFloat = 0.0  # alpha; 0 is off

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, raw: object) -> object:
        return preset_fields(raw) if isinstance(raw, str) else {} if raw is None else raw


class AugmentationPreset(NamedTuple):
    description: str
    fields: dict[str, Any]


_ABLATION_BASE: dict[str, Any] = {
    "resized_crop": {},
    "horizontal_flip": True,
    "color_jitter": 0.4,
}
_ABLATION_SWITCHES: dict[str, dict[str, Any]] = {
    "MixUp 0.8": {"mixup": 0.8},
    "CutMix 1.0": {"cutmix": 1.0},
    "RandAugment": {"rand_augment": {}},
    "erasing 0.25": {"random_erasing": 0.25},
}


def _ablation_preset(digits: tuple[int, ...]) -> AugmentationPreset:
    enabled = [switch for switch, digit in zip(_ABLATION_SWITCHES, digits, strict=True) if digit]
    fields = dict(_ABLATION_BASE)
    for switch in enabled:
        fields |= _ABLATION_SWITCHES[switch]
    return AugmentationPreset(", ".join(["resized crop, flip, jitter 0.4", *enabled]), fields)


# Each digit switches one of MixUp, CutMix, RandAugment and random erasing on: the ablation in
# Debenedetti's thesis that became arXiv:2209.07399.
AUGMENTATION_PRESETS = {
    "ablation-" + "".join(map(str, digits)): _ablation_preset(digits)
    for digits in product((0, 1), repeat=4)
}


def list_augmentations() -> list[str]:
    """Names of the augmentation presets."""
    return list(AUGMENTATION_PRESETS)


def preset_fields(name: str) -> dict[str, Any]:
    """Fields of `AugmentationSpec` of a preset."""
    presets = {normalize_name(n): preset.fields for n, preset in AUGMENTATION_PRESETS.items()}
    if normalize_name(name) not in presets:
        raise UnknownNameError(unknown_name_message("augmentation", name, list_augmentations()))
    return presets[normalize_name(name)]


SPEC_VERSION = 2

ThreatString = Annotated[str, AfterValidator(lambda text: str(Threat.parse(text)))]


def _parse_component(raw: object) -> object:
    """Parse a component; a bare name is one without arguments."""
    return {"name": raw} if isinstance(raw, str) else raw


ComponentField = Annotated[ComponentSpec, BeforeValidator(_parse_component)]


class OptimizerSpec(Spec):
    """Optimizer and its hyperparameters."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0)]
    lr_batch_size: PositiveInt | None = None  # the batch size that ``lr`` is for; scaled to others
    lr_scaling: Literal["linear", "sqrt"] = "linear"  # with batch_size / lr_batch_size, or its root
    weight_decay: NonNegativeFloat = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    decay_1d_parameters: bool = True  # False: biases and norm layers are not decayed, ...
    no_weight_decay: tuple[str, ...] = ()  # ... nor parameters with one of these in their name


class LRScheduleSpec(Spec):
    """Learning rate schedule, as a factor of the peak learning rate."""

    name: Literal["constant", "cosine", "step", "cyclic", "points"] = "cosine"
    warmup_epochs: NonNegativeFloat = 0.0
    warmup_start_factor: NonNegativeFloat = 0.0
    hold_epochs: NonNegativeFloat = 0.0  # at the peak, after the warm-up
    cooldown_epochs: NonNegativeFloat = 0.0  # at the end, at the lowest rate
    final_factor: NonNegativeFloat = 0.0  # cosine: the factor at the end
    cosine_epochs: Annotated[float, Field(gt=0)] | None = None  # by default, all that are left
    cosine_from_start: bool = False  # counted from the first epoch, under the warm-up
    per_epoch: bool = False  # the rate changes between epochs, not at every step
    peak_position: Annotated[float, Field(gt=0, lt=1)] = 0.4  # cyclic: fraction of epochs
    milestones: tuple[NonNegativeFloat, ...] = ()  # step: epochs at which ...
    factor: Annotated[float, Field(gt=0)] = 0.1  # ... the rate is multiplied by this
    points: tuple[tuple[NonNegativeFloat, NonNegativeFloat], ...] = ()  # points: (epoch, factor)

    @model_validator(mode="after")
    def _check_points(self) -> LRScheduleSpec:
        epochs = [epoch for epoch, _ in self.points]
        if self.name == "points" and (not epochs or epochs != sorted(set(epochs))):
            raise ValueError(
                f"`points` must be [epoch, factor] pairs with increasing epochs, but got {epochs}"
            )
        return self


class WeightAveragingSpec(Spec):
    """Weight averaging over training; the averaged weights are validated and saved."""

    kind: Literal["ema", "swa"] = "ema"  # exponential, or uniform
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.999  # of ema, per step
    from_epoch: NonNegativeFloat = 0.0


class AWPSpec(Spec):
    """Adversarial weight perturbation (arXiv:2004.05884)."""

    gamma: Annotated[float, Field(gt=0)] = 0.005  # perturbation size relative to each tensor's norm
    from_epoch: NonNegativeFloat = 0.0


class ExtraDataSpec(Spec):
    """Extra training data, as a fixed fraction of every batch."""

    dataset: str
    batch_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5


class ValidationSpec(Spec):
    """How the best epoch is selected: robust accuracy on validation images."""

    attack: ComponentField = ComponentSpec(name="pgd", args={"steps": 10})
    limit: PositiveInt | None = None
    every: PositiveInt = 1
    from_epoch: NonNegativeInt = 0  # earlier epochs are not validated
    select_by: Literal["robust", "clean"] = "robust"


class Recipe(Spec):
    """A complete training configuration."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "about": "`description`",
        "optimiser": "`optimizer`",
        "decay_vectors": "`decay_1d_parameters`",
        "exempt": "`no_weight_decay`",
        "warmup_from": "`warmup_start_factor`",
        "final": "`final_factor`",
        "horizon": "`cosine_epochs`",
        "from_start": "`cosine_from_start`",
        "by_epoch": "`per_epoch`",
        "peak": "`peak_position`",
        "crop": "`crop_padding`",
        "flip": "`horizontal_flip`",
        "jitter": "`color_jitter`",
        "auto": "`auto_augment`",
        "rand": "`rand_augment`",
        "ops": "`num_ops`",
        "erasing": "`random_erasing`",
        "by": "`select_by`",
        "eps_by_epoch": "`eps_per_epoch`",
        "step_follows_eps": "`scale_step_with_eps`",
        "l1": "`l1_weight`",
        "average": "`weight_averaging`",
        "extra": "`extra_data`",
        "share": "`batch_fraction`",
        "accumulate": "`accumulation_steps`",
        "clip_norm": "`clip_grad_norm`",
        "normalise": "`normalize`",
    }

    name: str = ""
    description: str = ""
    source: str = ""
    cost: str = ""  # of the whole training: epochs, images, passes, hours if known
    expected: str = ""  # the published accuracy, of which model and under which attack
    epochs: PositiveInt
    batch_size: PositiveInt = 128
    objective: ComponentField = ComponentSpec(name="standard")
    threat: ThreatString | None = None
    eps_zero_epochs: NonNegativeFloat = 0.0  # clean training first, ...
    eps_warmup_epochs: NonNegativeFloat = 0.0  # ... then eps grows over these epochs, ...
    eps_warmup: Literal["linear", "sine"] = "linear"  # ... in this way
    eps_per_epoch: bool = False  # eps changes between epochs, not at every step
    scale_step_with_eps: bool = True  # whether the attack's steps warm up with eps
    optimizer: OptimizerSpec
    schedule: LRScheduleSpec = LRScheduleSpec()
    augmentation: AugmentationSpec = AugmentationSpec()
    augmentation_repeats: PositiveInt = 1  # steps per batch; of several, the first is unaugmented
    validation: ValidationSpec = ValidationSpec()
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    l1_weight: NonNegativeFloat = 0.0  # coefficient of the L1 penalty on all weights
    weight_averaging: WeightAveragingSpec | None = None
    awp: AWPSpec | None = None
    extra_data: ExtraDataSpec | None = None
    select_on: Literal["val", "test"] = "val"  # test: for replication only, and marked everywhere
    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    accumulation_steps: PositiveInt = 1  # micro-batches that a batch is split into
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    # The model's first layer: mean and std of the dataset, none, or 1/2 and 1/2.
    normalize: bool | Literal["half"] = True
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"

    def scaled_optimizer(self) -> OptimizerSpec:
        """The optimizer with the learning rate for this batch size."""
        spec = self.optimizer
        if spec.lr_batch_size is None:
            return spec
        ratio = self.batch_size / spec.lr_batch_size
        factor = ratio if spec.lr_scaling == "linear" else ratio**0.5
        return spec.model_copy(update={"lr": spec.lr * factor})


NON_IDENTITY_FIELDS = (
    "name",
    "description",
    "source",
    "cost",
    "expected",
)  # fields of a recipe that do not affect results


class RunSpec(Spec):
    """Full specification of one training run; its digest is the key of the run."""

    model: str  # of a user's file: its path, in run.json relative to the run
    model_sha256: str | None = None  # of the Python files of a user's model
    model_args: dict[str, Any] = Field(default_factory=dict)
    dataset: str
    limit: PositiveInt | None = None
    num_classes: PositiveInt
    image_size: PositiveInt
    in_channels: PositiveInt
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: Recipe
    seed: int = 0
    # Initial weights, if not random: their hash, or ``run:KEY`` in a study.
    initial_weights: str | None = None

    def identity(self) -> dict[str, Any]:
        """The content that identifies a run.

        Settings at their defaults are left out, so that a new setting keeps the keys of old runs;
        a changed default needs a new `SPEC_VERSION`.
        """
        body = self.model_dump(mode="json", exclude_defaults=True)
        body["recipe"] = {k: v for k, v in body["recipe"].items() if k not in NON_IDENTITY_FIELDS}
        body["model"] = self.model if ":" in self.model else normalize_name(self.model)
        if self.model_sha256 is not None:  # the code counts, not where it lies
            body["model"] = Path(self.model).name
        return {"version": SPEC_VERSION, **body}

    def key(self) -> str:
        """Name of the run's directory in a study: readable and unique to its content."""
        stem = Path(self.model.split(":")[-1]).stem
        return f"{normalize_name(stem)}-{digest(self.identity())[:12]}"

    @property
    def model_name(self) -> str:
        """Short name of the model, for tables and charts."""
        return short_model_name(self.model)
