"""What a run is asked to be: every setting that may change a number, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from buttress.records.augmentation import AugmentationSpec
from buttress.registry import canonical
from buttress.spec import Component, Spec, digest
from buttress.threat import Threat

SPEC_VERSION = 1

ThreatText = Annotated[str, AfterValidator(lambda text: str(Threat.parse(text)))]


def _component(raw: object) -> object:
    """A bare name stands for a component without arguments."""
    return {"name": raw} if isinstance(raw, str) else raw


Named = Annotated[Component, BeforeValidator(_component)]


class Optimiser(Spec):
    """How weights move along a gradient."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0)]
    weight_decay: NonNegativeFloat = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    decay_vectors: bool = True  # False: biases, norms and other 1-d tensors are not decayed
    exempt: tuple[str, ...] = ()  # nor are parameters with one of these in their names


class Schedule(Spec):
    """The learning rate over epochs, as a factor of its peak."""

    name: Literal["constant", "cosine", "step", "cyclic", "points"] = "cosine"
    warmup_epochs: NonNegativeFloat = 0.0
    warmup_from: NonNegativeFloat = 0.0
    hold_epochs: NonNegativeFloat = 0.0  # at the peak, after the warm-up
    cooldown_epochs: NonNegativeFloat = 0.0  # at the end, at the lowest rate
    final: NonNegativeFloat = 0.0  # cosine: the factor at the end
    horizon: Annotated[float, Field(gt=0)] | None = None  # cosine: epochs it takes, if not all
    from_start: bool = False  # cosine: counted from the first epoch, under the warm-up
    by_epoch: bool = False  # the rate changes between epochs, not at every step
    peak: Annotated[float, Field(gt=0, lt=1)] = 0.4  # cyclic: the share of the epochs it rises
    milestones: tuple[NonNegativeFloat, ...] = ()  # step: epochs at which ...
    factor: Annotated[float, Field(gt=0)] = 0.1  # ... the rate is multiplied by this
    points: tuple[tuple[NonNegativeFloat, NonNegativeFloat], ...] = ()  # points: (epoch, factor)

    @model_validator(mode="after")
    def _has_points(self) -> Schedule:
        at = [epoch for epoch, _ in self.points]
        if self.name == "points" and (not at or at != sorted(set(at))):
            raise ValueError(
                f"`points` needs pairs [epoch, factor] with rising epochs, but has {at}"
            )
        return self


class Average(Spec):
    """Weights averaged over training, which are then the ones that are judged and kept."""

    kind: Literal["ema", "swa"] = "ema"  # with forgetting, or all alike
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.999  # ema: how much stays at each step
    from_epoch: NonNegativeFloat = 0.0


class AWP(Spec):
    """Weights moved against the loss before each step (arXiv:2004.05884)."""

    gamma: Annotated[float, Field(gt=0)] = 0.005  # how far, as a share of each tensor's norm
    from_epoch: NonNegativeFloat = 0.0


class Extra(Spec):
    """More images, in a fixed part of every batch."""

    dataset: str
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5


class Validation(Spec):
    """How the best epoch is chosen: accuracy under an attack on images held out of training."""

    attack: Named = Component(name="pgd", args={"steps": 10})
    limit: PositiveInt | None = None
    every: PositiveInt = 1
    from_epoch: NonNegativeInt = 0  # no earlier epoch is looked at
    by: Literal["robust", "clean"] = "robust"


class Recipe(Spec):
    """A complete training configuration."""

    name: str = ""
    about: str = ""
    source: str = ""
    cost: str = ""  # of the whole training: epochs, images, passes, hours if known
    expected: str = ""  # the published accuracy, of which model and under which attack
    epochs: PositiveInt
    batch_size: PositiveInt = 128
    objective: Named = Component(name="standard")
    threat: ThreatText | None = None
    eps_zero_epochs: NonNegativeFloat = 0.0  # clean training first, ...
    eps_warmup_epochs: NonNegativeFloat = 0.0  # ... then eps grows over these epochs, ...
    eps_warmup: Literal["linear", "sine"] = "linear"  # ... in this way
    eps_by_epoch: bool = False  # eps changes between epochs, not at every step
    step_follows_eps: bool = True  # the attack's steps grow with eps; False: they are always full
    optimiser: Optimiser
    schedule: Schedule = Schedule()
    augmentation: AugmentationSpec = AugmentationSpec()
    validation: Validation = Validation()
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    l1: NonNegativeFloat = 0.0  # this much times the sum of the sizes of all weights
    average: Average | None = None
    awp: AWP | None = None
    extra: Extra | None = None
    select_on: Literal["val", "test"] = "val"  # test: for replication only, and marked everywhere
    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    accumulate: PositiveInt = 1  # parts of a batch that pass one after the other
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    # The model's first layer: mean and std of the data set, none, or 1/2 and 1/2.
    normalise: bool | Literal["half"] = True
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"


DESCRIPTION = (
    "name",
    "about",
    "source",
    "cost",
    "expected",
)  # fields of a recipe that change no number


class RunSpec(Spec):
    """One training run, resolved: what it is decides its key."""

    model: str
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
    # What training begins with if not with fresh weights: their hash, or ``run:KEY`` in a study.
    start: str | None = None

    def identity(self) -> dict[str, Any]:
        """What decides whether two runs are the same run.

        Settings at their defaults are left out, so that a new setting keeps the keys of old runs;
        a changed default needs a new `SPEC_VERSION`.
        """
        body = self.model_dump(mode="json", exclude_defaults=True)
        body["recipe"] = {k: v for k, v in body["recipe"].items() if k not in DESCRIPTION}
        body["model"] = self.model if ":" in self.model else canonical(self.model)
        return {"version": SPEC_VERSION, **body}

    def key(self) -> str:
        """The name of the run's directory in a study: readable, and unique to its content."""
        stem = Path(self.model.split(":")[-1]).stem
        return f"{canonical(stem)}-{digest(self.identity())[:12]}"
