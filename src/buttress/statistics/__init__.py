"""Numbers with their uncertainty: shares, differences, seeds, ranks, many tests."""

from buttress.statistics.intervals import Z95, Interval, mean_interval, wilson
from buttress.statistics.many import holm
from buttress.statistics.paired import (
    Difference,
    Split,
    mcnemar,
    paired_difference,
    resampled_interval,
    score_interval,
    split_images,
)
from buttress.statistics.permutation import spearman_p
from buttress.statistics.power import mcnemar_power, smallest_difference
from buttress.statistics.ranks import Estimate, auc, spearman
from buttress.statistics.resampling import bootstrap
from buttress.statistics.seeds import (
    Spread,
    difference_over_seeds,
    over_seeds,
    over_seeds_and_images,
)

__all__ = [
    "Z95",
    "Difference",
    "Estimate",
    "Interval",
    "Split",
    "Spread",
    "auc",
    "bootstrap",
    "difference_over_seeds",
    "holm",
    "mcnemar",
    "mcnemar_power",
    "mean_interval",
    "over_seeds",
    "over_seeds_and_images",
    "paired_difference",
    "resampled_interval",
    "score_interval",
    "smallest_difference",
    "spearman",
    "spearman_p",
    "split_images",
    "wilson",
]
