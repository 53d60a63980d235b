"""Numerical methods that analyses share."""
