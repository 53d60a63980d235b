"""Benchmarks: Buttress and other tools on the same images, in one run."""
