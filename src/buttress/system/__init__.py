"""Files, locks, random numbers, progress and CPU settings: what knows no robustness."""
