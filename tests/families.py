"""Models that an analysis has no meaning for, by what their families register."""

from __future__ import annotations

from buttress.models import MODELS

# No softmax over places: convolutions and mixers, and XCiT, which attends between channels.
WITHOUT_MAPS = {
    entry.name
    for entry in MODELS
    if "tiny" in entry.tags and entry.metadata["attention"] != "tokens"
}
