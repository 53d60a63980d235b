"""Intervals and tests: accuracies, paired differences, seeds, ranks, corrections."""

from buttress.statistics.intervals import (
    Z95,
    Interval,
    bootstrap_mean_interval,
    effective_image_fraction,
    mean_interval,
    wilson_interval,
)
from buttress.statistics.paired import (
    PairedCounts,
    PairedDifference,
    bootstrap_difference_interval,
    count_pairs,
    detectable_difference,
    holm,
    mcnemar,
    mcnemar_power,
    paired_difference,
    score_interval,
)
from buttress.statistics.ranks import EstimateWithInterval, auc, spearman, spearman_p_value
from buttress.statistics.seeds import (
    SeedSummary,
    seed_difference,
    summarize_seeds,
    summarize_seeds_and_images,
)

__all__ = [
    "Z95",
    "EstimateWithInterval",
    "Interval",
    "PairedCounts",
    "PairedDifference",
    "SeedSummary",
    "auc",
    "bootstrap_difference_interval",
    "bootstrap_mean_interval",
    "count_pairs",
    "detectable_difference",
    "effective_image_fraction",
    "holm",
    "mcnemar",
    "mcnemar_power",
    "mean_interval",
    "paired_difference",
    "score_interval",
    "seed_difference",
    "spearman",
    "spearman_p_value",
    "summarize_seeds",
    "summarize_seeds_and_images",
    "wilson_interval",
]
