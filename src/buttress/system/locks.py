"""File locks on folders: two processes never write the same run or records; stale locks expire.

The lock is a file beside the folder. Who creates it holds it; its holder touches it every few
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

from buttress.errors import RunError
from buttress.system.files import create_file, remove_temporary_files, utc_timestamp
from buttress.system.progress import Progress, ProgressTask

HEARTBEAT_SECONDS = 10.0  # seconds between touches
STALE_SECONDS = 120.0  # seconds without a touch after which the lock is stale
LOCK_SUFFIX = ".lock"


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock, from the lock file."""

    host: str = ""
    boot_id: str = ""  # of the machine, which another of the same name does not have
    pid_namespace: str = ""  # containers number their processes independently
    pid: int = 0
    process_start: str = ""  # which tells it from a later process of the same number
    since: str = ""
    token: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else "an unknown process"

    @property
    def has_exited(self) -> bool:
        """Whether the process is known to have ended; False if it cannot be seen from here."""
        is_visible = (self.host, self.boot_id, self.pid_namespace) == _process_scope()
        return is_visible and _process_start(self.pid) != self.process_start


def current_holder() -> LockHolder:
    pid = os.getpid()
    return LockHolder(
        *_process_scope(), pid, _process_start(pid), utc_timestamp(), uuid.uuid4().hex
    )


def _process_scope() -> tuple[str, str, str]:
    """Host name, boot id and PID namespace: where the number of a process means this process."""
    boot_id = namespace = ""
    with contextlib.suppress(OSError):  # no /proc on this system
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    with contextlib.suppress(OSError):
        namespace = str(os.readlink("/proc/self/ns/pid"))
    return socket.gethostname(), boot_id, namespace


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


_HELD: dict[Path, int] = {}  # locks of this process -> the thread that holds them


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
        if not (self._create(self.path) or self._take_over()):
            return False
        self._thread = threading.Thread(target=self._heartbeat_loop, daemon=True)
        self._thread.start()
        _HELD[self.path.resolve()] = threading.get_ident()
        return True

    def release(self) -> None:
        _HELD.pop(self.path.resolve(), None)
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
        return create_file(path, json.dumps(vars(self.holder)))

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


@contextlib.contextmanager
def lock_folder(folder: Path | None, progress: Progress, pause: float = 1.0) -> Iterator[Progress]:
    """Hold the lock of a folder in the block; log and wait while another process holds it.

    What killed processes left in the folder is removed. The same thread may lock a folder twice, as
    in a study, which locks the folders of its runs. A folder that cannot be written to, whose
    results are only read, is not locked; neither is None.

    Yields:
        The progress to use in the block, which raises `RunError` when the lock was lost.
    """
    path = None if folder is None else _lock_of_folder(folder.resolve())
    if folder is None or path is None:
        yield progress
        return
    if _HELD.get(path) == threading.get_ident():
        remove_temporary_files(folder)
        yield progress
        return
    lock = FileLock(path)
    if not lock.acquire():
        holder = read_holder(path) or "another process"
        progress.log(f"{folder} is locked by {holder}; waiting for it")
        while not lock.acquire():
            time.sleep(pause)
    with lock:
        remove_temporary_files(folder)
        try:
            yield LockedProgress(progress, lock)
        except LockLostError as error:
            raise RunError(f"{error}; run the same command again to resume") from None


def _lock_of_folder(folder: Path) -> Path | None:
    """The lock beside a folder, in it if only it can be written to; None if nothing can."""
    if not folder.is_dir() or os.access(folder.parent, os.W_OK):
        return folder.with_name(folder.name + LOCK_SUFFIX)
    return folder / LOCK_SUFFIX if os.access(folder, os.W_OK) else None


class LockedProgress:
    """Progress of a process that holds a lock; raises `LockLostError` when it is lost."""

    def __init__(self, progress: Progress, lock: FileLock) -> None:
        self.progress, self.lock = progress, lock

    def add_task(self, description: str, total: float) -> ProgressTask:
        self.lock.check()
        return LockedProgressTask(self.progress.add_task(description, total), self.lock)

    def log(self, text: str) -> None:
        self.progress.log(text)


class LockedProgressTask:
    def __init__(self, task: ProgressTask, lock: FileLock) -> None:
        self.task, self.lock = task, lock

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.lock.check()
        self.task.advance(amount, note)

    def resume(self, amount: float) -> None:
        self.task.resume(amount)

    def close(self) -> None:
        self.task.close()
