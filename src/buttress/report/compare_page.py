"""Data for the page that compares two models: a bit per image, so that the browser can count."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from buttress.report.board import Board, Row
from buttress.report.words import pretty_threat

MOST = 200  # models of one board; each adds its bits to the page


def compared(boards: Sequence[Board]) -> list[dict[str, Any]]:
    """The boards with two models or more; the best ones, if there are too many."""
    return [group(b) for b in boards if sum(bool(r.suite.results) for r in b.rows) > 1]


def group(board: Board) -> dict[str, Any]:
    parts = [board.dataset, board.split, f"suite {board.suite}", f"{board.images} images"]
    return {
        "title": ", ".join(p for p in parts if p),
        "images": board.images,
        "columns": ["worst case", *(c.title for c in board.columns)],
        "rows": [row(r) for r in board.rows[:MOST]],
        "left_out": max(0, len(board.rows) - MOST),
    }


def row(found: Row) -> dict[str, Any]:
    run = found.run
    how = f"{run.objective} {pretty_threat(run.trained_on)}".strip()
    doubt = " (untrustworthy)" if found.worst.is_doubtful else ""
    worst = np.packbits(found.suite.survived).tobytes() if found.worst.share else b""
    flags = [worst, *(b"" if r is None else r.flags for r in found.results)]
    return {
        "name": f"{run.label} · {how}{doubt}",
        "page": f"models/{run.slug}.html",
        "slug": run.slug,
        "flags": [base64.b64encode(f).decode() for f in flags],
    }


def embedded(content: Any) -> Markup:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return Markup("".join(escapes.get(c, c) for c in text))
