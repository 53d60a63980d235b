"""File locks on runs: two processes never execute the same run; stale locks expire.

The lock is a file beside the run's folder. Who creates it holds it; its holder touches it every few
seconds. It is stale when its process is gone from this machine, or when it was not touched for
long: then the machine is gone. Ages are measured by the clock of the shared file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from buttress.system.clock import utc_timestamp

HEARTBEAT_SECONDS = 10.0  # seconds between touches
STALE_SECONDS = 120.0  # seconds without a touch after which the lock is stale
LOCK_SUFFIX = ".lock"


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock, from the lock file."""

    host: str = ""
    pid: int = 0
    process_start: str = ""  # which tells it from a later process of the same number
    since: str = ""
    token: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else "an unknown process"

    @property
    def has_exited(self) -> bool:
        """Whether the process is known to have ended; False on other machines."""
        return self.host == socket.gethostname() and _process_start(self.pid) != self.process_start


def current_holder() -> LockHolder:
    pid = os.getpid()
    return LockHolder(
        socket.gethostname(), pid, _process_start(pid), utc_timestamp(), uuid.uuid4().hex
    )


def _process_start(pid: int) -> str:
    """When a process of this machine started; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:  # no /proc on this system
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"


def read_holder(path: Path) -> LockHolder | None:
    """Read the holder of a lock; None if it is free."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return LockHolder(**content)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return LockHolder()


def seconds_since_touched(path: Path) -> float:
    """Seconds since a file was touched, by the clock of its file system; 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError), tempfile.TemporaryFile(dir=path.parent) as probe:
        return os.fstat(probe.fileno()).st_mtime - path.stat().st_mtime
    return 0.0


def is_stale(path: Path, holder: LockHolder, limit: float = STALE_SECONDS) -> bool:
    return holder.has_exited or seconds_since_touched(path) > limit


class LockLostError(Exception):
    """Another process took over the lock because it was stale."""


class FileLock:
    """Lock file, held from `acquire` to `release`; a thread touches it."""

    def __init__(
        self, path: Path, *, beat: float = HEARTBEAT_SECONDS, limit: float = STALE_SECONDS
    ) -> None:
        self.path, self.heartbeat, self.stale_after = path, beat, limit
        self.holder = current_holder()
        self.is_lost = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> bool:
        """Acquire the lock if it is free or stale."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not (self._create(self.path) or self._take_over()):
            return False
        self._thread = threading.Thread(target=self._heartbeat_loop, daemon=True)
        self._thread.start()
        return True

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_owned():
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def check(self) -> None:
        """Raise `LockLostError` if another process holds it now."""
        if self.is_lost:
            raise LockLostError(f"lost the lock {self.path} to {read_holder(self.path)}")

    def _create(self, path: Path) -> bool:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(vars(self.holder), file)
        return True

    def _take_over(self) -> bool:
        """Replaces a stale lock; a second lock lets only one process do so at a time."""
        holder = read_holder(self.path)
        if holder is None or not is_stale(self.path, holder, self.stale_after):
            return False
        guard = self.path.with_name(f"{self.path.name}.guard")
        with _takeover_guard(guard, self.stale_after) as has_guard:
            if not has_guard or read_holder(self.path) != holder:
                return False
            replacement = self.path.with_name(f"{self.path.name}.{self.holder.token}")
            self._create(replacement)
            replacement.replace(self.path)
        return True

    def _is_owned(self) -> bool:
        holder = read_holder(self.path)
        return holder is not None and holder.token == self.holder.token

    def _heartbeat_loop(self) -> None:
        while not self._stop.wait(self.heartbeat):
            try:
                if not self._is_owned():
                    self.is_lost = True
                    return
                os.utime(self.path)
            except OSError:  # the file system may come back before the limit
                continue


@contextlib.contextmanager
def _takeover_guard(path: Path, limit: float) -> Iterator[bool]:
    """Whether this process alone is inside; one that was left behind by a crash is removed."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if seconds_since_touched(path) > limit:
            path.unlink(missing_ok=True)
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)


def remove_stale_lock(path: Path) -> None:
    """Remove a stale lock."""
    lock = FileLock(path)
    if path.exists() and lock.acquire():
        lock.release()


@contextlib.contextmanager
def wait_for_lock(path: Path, pause: float = 1.0) -> Iterator[None]:
    """Wait for a lock and hold it in the block."""
    lock = FileLock(path)
    while not lock.acquire():
        time.sleep(pause)
    with lock:
        yield
