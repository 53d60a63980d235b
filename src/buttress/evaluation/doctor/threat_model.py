"""Checks on eps and on the number of images."""

from __future__ import annotations

import math

from buttress.evaluation.doctor.core import CHECKS, AttackRecords, ModelUnderTest, make_finding
from buttress.results.diagnosis import Finding
from buttress.statistics import wilson_interval

MAX_INTERVAL_WIDTH = 0.15  # of a 95% interval; 256 images pass
MAX_EPS_RATIO = 10.0  # times the default eps of the dataset, or a tenth of it
COMMON_EPS_LEVELS = (1, 2, 4, 8, 16)  # of 255: the eps of published Linf numbers
ROUNDED_TOLERANCE, EQUAL_TOLERANCE = (
    0.03,
    1e-3,
)  # relative: closer than the first is a rounded eps, closer than the second equal


@CHECKS.register("few_images", tags=("records",))
def few_images(records: AttackRecords) -> Finding | None:
    """There are too few images for a narrow 95% interval."""
    if not records.records:
        return None
    n = len(records.records[0])
    flags = records.records[-1].correct
    low, high = wilson_interval(int(flags.sum()), n)
    if high - low <= MAX_INTERVAL_WIDTH:
        return None
    return make_finding(
        few_images,
        "note",
        f"only {n} images: the 95% interval is {100 * (high - low):.0f} points wide",
        "use more images (1,000 give about 6 points)",
        {"images": n, "low": low, "high": high},
    )


@CHECKS.register("eps_too_large", tags=("threat",))
def eps_too_large(subject: ModelUnderTest) -> Finding | None:
    """Eps is so large that images can be turned into the same gray image."""
    distance_to_gray = subject.threat.perturbation_size(
        subject.x, subject.x.new_full(subject.x.shape, 0.5)
    )
    median_distance = float(distance_to_gray.median())
    if subject.threat.eps < median_distance:
        return None
    return make_finding(
        eps_too_large,
        "warning",
        f"at {subject.threat} half of the images can be turned into the same gray image: no model "
        "can be robust there, so accuracy above chance level means that the attack is weak",
        "eps is on the [0, 1] scale of the images: write 8/255 for 8 gray levels",
        {"eps": subject.threat.eps, "distance_to_gray": median_distance},
    )


@CHECKS.register("unusual_eps", tags=("threat",))
def unusual_eps(subject: ModelUnderTest) -> Finding | None:
    """Eps differs by a factor of 10 from the default of the dataset."""
    eps, default_eps = subject.threat.eps, subject.data.budgets[subject.threat.norm]
    if eps == 0 or 1 / MAX_EPS_RATIO <= eps / default_eps <= MAX_EPS_RATIO:
        return None
    size = "larger" if eps > default_eps else "smaller"
    return make_finding(
        unusual_eps,
        "note",
        f"eps of {subject.threat} is more than {MAX_EPS_RATIO:g} times {size} than the default "
        f"{subject.threat.norm} eps of {subject.data.name}, {default_eps:.4g}",
        "eps is on the [0, 1] scale of the images: write 8/255 for 8 gray levels",
        {"eps": eps, "common_eps": default_eps},
    )


@CHECKS.register("rounded_eps", tags=("threat",))
def rounded_eps(subject: ModelUnderTest) -> Finding | None:
    """Eps such as 0.031 is close, but not equal, to a common one such as 8/255."""
    eps = subject.threat.eps
    level = min(COMMON_EPS_LEVELS, key=lambda k: abs(math.log(max(eps, 1e-12) * 255 / k)))
    relative_error = abs(eps * 255 / level - 1)
    if subject.threat.norm != "Linf" or not EQUAL_TOLERANCE < relative_error < ROUNDED_TOLERANCE:
        return None
    return make_finding(
        rounded_eps,
        "warning",
        f"eps {eps:.6g} is close, but not equal, to {level}/255 = {level / 255:.6g}: the result is "
        "not comparable with published numbers",
        f"write Linf:{level}/255",
        {"eps": eps, "common_eps": level / 255},
    )
