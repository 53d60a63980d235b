"""Threat models: what may happen to an image."""

from buttress.threats.norm_ball import Norm, Threat

__all__ = ["Norm", "Threat"]
