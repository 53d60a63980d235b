"""Is the number about a usual ball, and about enough images?"""

from __future__ import annotations

import math

from buttress.evaluation.doctor.core import CHECKS, Chart, Patient, finding
from buttress.records.diagnosis import Finding
from buttress.statistics import wilson

WIDE = 0.15  # of a 95% interval: 256 images pass, and 15 points are more than models often differ
FAR = 10.0  # times the usual eps of the data, or a tenth of it
USUAL_LEVELS = (1, 2, 4, 8, 16)  # of 255: the eps of published Linf numbers
NEAR, SAME = 0.03, 1e-3  # relative: nearer than that is a rounded eps, and nearer still the same


@CHECKS.register("few_images", tags=("records",))
def few_images(chart: Chart) -> Finding | None:
    """So few images that the number could be quite another one."""
    if not chart.records:
        return None
    n = len(chart.records[0])
    flags = chart.records[-1].correct
    low, high = wilson(int(flags.sum()), n)
    if high - low <= WIDE:
        return None
    return finding(
        few_images,
        "note",
        f"{n} images are few: the 95% interval is {100 * (high - low):.0f} points wide",
        "use more images (1,000 give about 6 points)",
        {"images": n, "low": low, "high": high},
    )


@CHECKS.register("eps_too_large", tags=("ball",))
def eps_too_large(patient: Patient) -> Finding | None:
    """The ball is so large that every image can become the same grey one."""
    grey = patient.threat.distance(patient.x, patient.x.new_full(patient.x.shape, 0.5))
    reach = float(grey.median())
    if patient.threat.eps < reach:
        return None
    return finding(
        eps_too_large,
        "warning",
        f"with {patient.threat} half of the images can be turned into one and the same grey image: "
        "no model can be right on them, so an accuracy above guessing shows a weak attack",
        "eps is on the [0, 1] scale of the images: write 8/255 where you mean 8 grey levels",
        {"eps": patient.threat.eps, "distance_to_grey": reach},
    )


@CHECKS.register("unusual_eps", tags=("ball",))
def unusual_eps(patient: Patient) -> Finding | None:
    """The ball has another size than is usual for the data."""
    eps, usual = patient.threat.eps, patient.data.budgets[patient.threat.norm]
    if eps == 0 or 1 / FAR <= eps / usual <= FAR:
        return None
    size = "larger" if eps > usual else "smaller"
    return finding(
        unusual_eps,
        "note",
        f"{patient.threat} is more than {FAR:g} times {size} than the usual "
        f"{patient.threat.norm} eps of {patient.data.name}, {usual:.4g}",
        "eps is on the [0, 1] scale of the images: write 8/255 where you mean 8 grey levels",
        {"eps": eps, "usual": usual},
    )


@CHECKS.register("rounded_eps", tags=("ball",))
def rounded_eps(patient: Patient) -> Finding | None:
    """An eps such as 0.031 that is nearly, but not, a usual one such as 8/255."""
    eps = patient.threat.eps
    level = min(USUAL_LEVELS, key=lambda k: abs(math.log(max(eps, 1e-12) * 255 / k)))
    away = abs(eps * 255 / level - 1)
    if patient.threat.norm != "Linf" or not SAME < away < NEAR:
        return None
    return finding(
        rounded_eps,
        "warning",
        f"eps {eps:.6g} is nearly {level}/255 = {level / 255:.6g}, but not equal: published "
        "numbers are not comparable",
        f"write Linf:{level}/255",
        {"eps": eps, "usual": level / 255},
    )
