"""The mean corruption error, plain and relative to AlexNet (arXiv:1903.12261, section 4.1).

The plain mean is over 15 corruptions and 5 severities. The paper's mCE divides the error under each
corruption by that of AlexNet under the same, which is published for the 1,000 classes of ImageNet
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from buttress.data.corruptions import CORRUPTIONS
from buttress.errors import UserError
from buttress.results.suite_spec import SEVERITIES

# Mean top-1 error of AlexNet over the five severities of ImageNet-C.
ALEXNET_ERRORS: Mapping[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
ALEXNET_DATASETS = ("imagenet", "imagenet-rb5000")


@dataclass(frozen=True)
class CorruptionErrorRates:
    """Errors in [0, 1]; ``relative_mce`` is 1 for AlexNet itself, None where it is undefined."""

    by_corruption: Mapping[str, float]  # each a mean over severities
    mce: float
    relative_mce: float | None
    reason: str = ""  # why relative_mce is undefined

    @property
    def accuracy(self) -> float:
        """Accuracy as papers on CIFAR-10-C report it: 1 minus the plain mean."""
        return 1 - self.mce


def mean_corruption_error(
    errors: Mapping[str, Sequence[float]], dataset: str
) -> CorruptionErrorRates:
    """Compute the mean corruption error, plain and relative to AlexNet.

    Args:
        errors: for each of the 15 common corruptions the errors at severity 1 to 5, in [0, 1];
            others are ignored.
        dataset: name of the clean dataset; decides whether AlexNet is a baseline.
    """
    names = CORRUPTIONS.names("common")
    errors_by_name = {CORRUPTIONS.entry(name).name: list(values) for name, values in errors.items()}
    if missing := [name for name in names if len(errors_by_name.get(name, ())) != len(SEVERITIES)]:
        raise UserError(
            f"the mean corruption error needs {len(SEVERITIES)} errors for each of {len(names)} "
            f"corruptions; incomplete: {', '.join(missing)}"
        )
    if out_of_range := [n for n in names if not all(0 <= e <= 1 for e in errors_by_name[n])]:
        name = out_of_range[0]
        raise UserError(f"errors must lie in [0, 1], but got {errors_by_name[name]} for {name}")
    by_corruption = {name: fmean(errors_by_name[name]) for name in names}
    clean_dataset = dataset.partition("+")[0]
    if clean_dataset not in ALEXNET_DATASETS:
        reason = (
            f"relative mCE is undefined for {clean_dataset}: the errors of AlexNet are published "
            "for ImageNet-C only"
        )
        return CorruptionErrorRates(by_corruption, fmean(by_corruption.values()), None, reason)
    relative_mce = fmean(by_corruption[name] / ALEXNET_ERRORS[name] for name in names)
    return CorruptionErrorRates(by_corruption, fmean(by_corruption.values()), relative_mce)
