"""Threat models: which perturbations of an image are allowed."""

from buttress.threats.norm_ball import Norm, Threat

__all__ = ["Norm", "Threat"]
