"""Trained models for others: weights, a model card and leaderboard records in one folder."""

from __future__ import annotations

from buttress.sharing.export import Export, export

__all__ = ["Export", "export"]
