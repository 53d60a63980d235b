"""Reproductions on the command line: runs that were lost, and errors without an answer.

Each function returns what the sources that are first on the path do, as one line. Those that need
a small disk or another PID namespace use ``unshare`` of util-linux.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = "import sys; from buttress.cli.main import run; run(sys.argv[1:])"
# A signal at the moment at which a temporary file with this prefix reaches the disk.
SIGNAL_AT = (
    """
import os, sys
prefix, number = sys.argv.pop(1), int(sys.argv.pop(1))
sync = os.fsync
def fsync(handle):
    if os.path.basename(os.readlink(f"/proc/self/fd/{handle}")).startswith(prefix):
        os.kill(os.getpid(), number)
    sync(handle)
os.fsync = fsync
"""
    + COMMAND
)
# A signal while the first module of the command line is imported.
SIGNAL_IN_IMPORT = (
    """
import os, signal, sys
number = int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Interrupt())
"""
    + COMMAND
)
TRAIN = ("train", "--model", "vit_tiny", "--data", "digits", "--recipe", "quickstart-standard",
         "--limit", "32", "--set", "epochs=1", "--device", "cpu", "--out", "run")  # fmt: skip
EVALUATE = ("evaluate", "run", "--suite", "clean,pgd:Linf:0.1", "--limit", "8")
MAX_CHARACTERS = 160  # of an error in the table
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
NET = """
from torch import nn
def net(num_classes=10, **shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))
"""
LOCK = """
import sys, time
from pathlib import Path
try:
    from buttress.system.locks import FileLock as Lock
except ImportError:
    from buttress.running.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("acquired" if lock.acquire() else "refused", flush=True)
time.sleep(float(sys.argv[2]))
"""
SYNCED = """
import os, sys
from pathlib import Path
try:
    from buttress.system.files import write_text
except ImportError:
    from buttress.files import write_text
handles, sync = [], os.fsync
def fsync(handle):
    handles.append(os.path.isdir(f"/proc/self/fd/{handle}"))
    sync(handle)
os.fsync = fsync
write_text(Path("a.txt"), "x")
print(f"{handles.count(False)} file and {handles.count(True)} folder synced")
"""


@contextmanager
def work_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="reproduced-") as name:
        yield Path(name).resolve()


def python(
    code: str, *args: str, cwd: Path | str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    line = [*before, sys.executable, "-c", code, *args]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd)


def command(*args: str, cwd: Path | str) -> subprocess.CompletedProcess[str]:
    return python(COMMAND, *args, cwd=cwd)


def answer(done: subprocess.CompletedProcess[str]) -> str:
    """Exit code, and the last line of an error."""
    lines = [text.strip() for text in done.stderr.splitlines() if text.strip()]
    text = f"exit code {done.returncode}"
    if done.returncode == 0:
        return text
    kind = "a traceback" if "Traceback" in done.stderr else "one line"
    last = re.sub(r"/\S*/reproduced-\w+/", "", lines[-1]) if lines else ""
    last = last.replace(sys.prefix, "...").replace("|", "/")
    return f"{text}, {kind}: {last[:MAX_CHARACTERS]}"


def killed_at(prefix: str, args: tuple[str, ...], cwd: Path) -> None:
    """Kill a command while it writes the file with this name."""
    done = python(SIGNAL_AT, f".{prefix}", str(int(signal.SIGKILL)), *args, cwd=cwd)
    assert done.returncode == -signal.SIGKILL, done.stderr


def damaged_last_checkpoint(is_lost: bool) -> str:
    """The last epoch is the best; its second checkpoint is gone."""
    with work_folder() as folder:
        command(*TRAIN, cwd=folder)
        last = folder / "run" / "last.pt"
        (folder / "run" / "done.json").unlink()
        last.unlink() if is_lost else last.write_bytes(last.read_bytes()[:100])
        return answer(command(*TRAIN, cwd=folder))


def killed_while_writing(name: str) -> str:
    """Killed while a file of the run is written, then the same command again."""
    with work_folder() as folder:
        killed_at(name, TRAIN, folder)
        return answer(command(*TRAIN, cwd=folder))


def leftovers_of_an_evaluation() -> str:
    with work_folder() as folder:
        command(*TRAIN, cwd=folder)
        killed_at("pgd", EVALUATE, folder)
        done = command(*EVALUATE, cwd=folder)
        left = len([*(folder / "run").rglob(".*.part")])
        return f"{answer(done)}, {left} .part files left"


def damaged_header() -> str:
    """One changed letter in `run.json`, then the same command again."""
    with work_folder() as folder:
        command(*TRAIN, cwd=folder)
        path = folder / "run" / "run.json"
        path.write_text(path.read_text().replace("vit_tiny", "vit_tinx", 1))
        done = command(*TRAIN, cwd=folder)
        said = [line.strip() for line in done.stderr.splitlines() if "run.json" in line]
        return f"{answer(done)}, {said[0][:90] if said else 'no word about it'}"


def two_trainings() -> str:
    """A second training in the folder of one that was stopped in its last file."""
    with work_folder() as folder:
        args = [sys.executable, "-c", SIGNAL_AT, ".last.pt", str(int(signal.SIGSTOP)), *TRAIN]
        first = subprocess.Popen(args, cwd=folder, stderr=subprocess.DEVNULL)
        wait_until(lambda: state_of(first.pid) == "T")
        log = folder / "log"
        with log.open("w") as file:
            line = [sys.executable, "-c", COMMAND, *TRAIN]
            second = subprocess.Popen(line, cwd=folder, stderr=file)
            wait_until(lambda: second.poll() is not None or "is locked" in log.read_text())
        code = second.poll()
        for process in (first, second):
            process.kill()
            process.wait()
        if code is None:
            return "waits: " + re.sub(r"process \d+ on \S+;", "process N;", log.read_text()).strip()
        return f"exit code {code} while the first one trains"


def state_of(pid: int) -> str:
    """The letter of a process's state: T if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def lock_of_a_container() -> str:
    """A lock that a living process in another PID namespace holds, with the same host name."""
    with work_folder() as folder:
        line = [*NAMESPACE, "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
        holder = subprocess.Popen([*line, "-c", LOCK, "a.lock", "60"], cwd=folder,
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "acquired\n"
        try:
            return python(LOCK, "a.lock", "0", cwd=folder).stdout.strip()
        finally:
            holder.kill()
            holder.wait()


def on_disk(options: str) -> str:
    """A training whose folder is on a small or read-only disk."""
    with work_folder() as folder:
        (folder / "disk").mkdir()
        mount = f'mount -t tmpfs -o {options} none disk && exec "$@"'
        args = [*TRAIN[:-1], "disk/run"]
        return answer(
            python(COMMAND, *args, cwd=folder, before=(*NAMESPACE, "sh", "-c", mount, ""))
        )


def deleted_directory() -> str:
    with work_folder() as folder:
        gone = "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n"
        return answer(python(gone + COMMAND, *TRAIN, cwd=folder))


def unwritable_folder() -> str:
    with work_folder() as folder:
        return answer(command(*TRAIN[:-1], "/proc/x/run", cwd=folder))


def folder_in_place_of(name: str) -> str:
    """A file of a run replaced by a folder, then the same command again."""
    with work_folder() as folder:
        command(*TRAIN, cwd=folder)
        (folder / "run" / name).unlink()
        (folder / "run" / name / "in it").mkdir(parents=True)
        return answer(command(*TRAIN, cwd=folder))


def absolute_paths() -> str:
    """Files of a run, its export and its pages that name a folder of the machine."""
    with work_folder() as folder:
        work, run = folder / "elsewhere", str(folder / "run")
        work.mkdir()
        (folder / "net.py").write_text(NET)
        model = f"{folder}/net.py:net"
        for args in (
            (*TRAIN[:1], "--model", model, *TRAIN[3:-1], run),
            (EVALUATE[0], run, *EVALUATE[2:]),
            ("export", run, "--to", str(folder / "exported")),
            ("report", run, "--out", str(folder / "pages")),
        ):
            done = command(*args, cwd=work)
            assert done.returncode == 0, done.stderr
        files = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pt"]
        named = sorted(p.name for p in files if str(folder).encode() in p.read_bytes())
    text = f"{len(named)} of {len(files)} files name the folder"
    return f"{text}: {', '.join(sorted(set(named)))}" if named else text


def synced_folder() -> str:
    with work_folder() as folder:
        done = python(SYNCED, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def exit_code_in_imports(number: signal.Signals) -> str:
    with work_folder() as folder:
        return (
            f"exit code {python(SIGNAL_IN_IMPORT, str(int(number)), *TRAIN, cwd=folder).returncode}"
        )


def exit_code_in_training(number: signal.Signals) -> str:
    with work_folder() as folder:
        log = folder / "run" / "train.jsonl"
        return f"exit code {stopped_by(number, folder, lambda: wait_until(log.exists))}"


def stopped_by(number: signal.Signals, folder: Path, wait: Callable[[], None]) -> int:
    args = [arg if arg != "epochs=1" else "epochs=400" for arg in TRAIN]
    line = [sys.executable, "-c", COMMAND, *args]
    # A parent in the background hands down that Ctrl-C is ignored.
    process = subprocess.Popen(
        line, cwd=folder, stderr=subprocess.DEVNULL, restore_signals=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )  # fmt: skip
    wait()
    process.send_signal(number)
    return process.wait(100)


def has_namespaces() -> bool:
    """Whether this machine lets users make namespaces."""
    line = [*NAMESPACE, "--pid", "--fork", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(line, check=False).returncode
