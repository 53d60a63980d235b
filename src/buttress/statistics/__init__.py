"""Intervals and tests: accuracies, paired differences, seeds, ranks, corrections."""

from buttress.statistics.intervals import Z95 as Z95
from buttress.statistics.intervals import Interval as Interval
from buttress.statistics.intervals import bootstrap_mean_interval as bootstrap_mean_interval
from buttress.statistics.intervals import effective_image_fraction as effective_image_fraction
from buttress.statistics.intervals import mean_interval as mean_interval
from buttress.statistics.intervals import wilson_interval as wilson_interval
from buttress.statistics.paired import PairedCounts as PairedCounts
from buttress.statistics.paired import PairedDifference as PairedDifference
from buttress.statistics.paired import (
    bootstrap_difference_interval as bootstrap_difference_interval,
)
from buttress.statistics.paired import count_pairs as count_pairs
from buttress.statistics.paired import detectable_difference as detectable_difference
from buttress.statistics.paired import holm as holm
from buttress.statistics.paired import mcnemar as mcnemar
from buttress.statistics.paired import mcnemar_power as mcnemar_power
from buttress.statistics.paired import paired_difference as paired_difference
from buttress.statistics.paired import score_interval as score_interval
from buttress.statistics.ranks import EstimateWithInterval as EstimateWithInterval
from buttress.statistics.ranks import auc as auc
from buttress.statistics.ranks import spearman as spearman
from buttress.statistics.ranks import spearman_p_value as spearman_p_value
from buttress.statistics.seeds import SeedSummary as SeedSummary
from buttress.statistics.seeds import seed_difference as seed_difference
from buttress.statistics.seeds import summarize_seeds as summarize_seeds
from buttress.statistics.seeds import summarize_seeds_and_images as summarize_seeds_and_images
