"""Where downloaded data sets are kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from buttress.errors import DataError

DAY = 86_400.0
PREFIX = ".get-"


def cache_dir() -> Path:
    """``$BUTTRESS_CACHE``, else ``$XDG_CACHE_HOME/buttress``, else ``~/.cache/buttress``."""
    if own := os.environ.get("BUTTRESS_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "buttress"


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder of this process inside ``folder``, removed at the end.

    What a killed process left behind is removed after a day: until then it may still be at work.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - leftover.stat().st_mtime > DAY:
                    shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder) as name:
            yield Path(name)
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error.strerror or error}; set BUTTRESS_CACHE to a folder "
            "with room that you may write to"
        ) from None
