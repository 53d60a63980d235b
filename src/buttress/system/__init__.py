"""Files, locks, random numbers, progress and CPU settings: no robustness code."""
