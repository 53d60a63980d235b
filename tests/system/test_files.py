"""Files are whole or absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from buttress.errors import CorruptFileError
from buttress.system.files import (
    atomic_write,
    atomic_write_folder,
    create_file,
    read_json,
    remove_temporary_files,
    write_json,
    write_text,
)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})

    def interrupted() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert read_json(path) == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_every_changed_or_missing_character_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"accuracy": 0.5, "name": "x"})
    whole = path.read_text()
    for place in range(len(whole.rstrip())):
        for broken in (whole[:place], whole[:place] + "7" + whole[place + 1 :]):
            if broken == whole:
                continue
            path.write_text(broken)
            with pytest.raises(CorruptFileError):
                read_json(path)


def test_numbers_that_are_not_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"n": float("nan")})
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".best.pt.abc.part").write_text("half")
    write_text(tmp_path / "keep.txt", "x")
    remove_temporary_files(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["keep.txt"]


def test_temporary_files_in_use_are_left_alone(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        remove_temporary_files(tmp_path)
        assert temporary.read_text() == "half"
        with atomic_write(tmp_path / "a.txt") as other:
            other.write_text("other")
        assert temporary.exists()
    assert (tmp_path / "a.txt").read_text() == "half"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_write_removes_what_a_killed_process_left_of_the_file(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.abc.part").write_text("half")
    (tmp_path / ".b.txt.abc.part").write_text("of another file")
    write_text(tmp_path / "a.txt", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".b.txt.abc.part", "a.txt"]


def test_file_and_folder_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a written file is there: its content and its name are on the disk."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).suffix or 'folder'}")
        fsync(handle)

    def rename(*args: Path) -> None:
        steps.append("rename")
        replace(*args)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write_text(tmp_path / "new" / "a.txt", "x")
    assert steps == ["sync folder", "sync .part", "rename", "sync folder"]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert create_file(path, "first")
    os.link(path, tmp_path / ".a.lock.abc.part")  # killed before it was removed
    assert not create_file(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


FULL = """
import resource, signal, sys
from pathlib import Path
from buttress.system.files import write_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
write_text(path, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(path, "x" * 100_000)
except OSError as error:
    print("errno", error.errno)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_a_disk_that_takes_no_more_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("errno")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def fill(text: str, error: type[BaseException] | None = None) -> None:
        with atomic_write_folder(path) as made:
            (made / "deep").mkdir()
            (made / "deep" / "x").write_text(text)
            if error:
                raise error

    with pytest.raises(KeyboardInterrupt):
        fill("half", KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == []
    fill("old")
    (path / "other").write_text("left from before")
    with pytest.raises(RuntimeError):
        fill("half", RuntimeError)
    assert (path / "deep" / "x").read_text() == "old"
    fill("new")
    assert [p.relative_to(path).as_posix() for p in sorted(path.rglob("*"))] == ["deep", "deep/x"]
    assert (path / "deep" / "x").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_moved_in_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.mkdir()
    (path / "x").write_text("old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if target == path and not self.name.endswith(".old.part"):
            raise OSError(28, "no room")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="no room"), atomic_write_folder(path) as made:
        (made / "x").write_text("new")
    assert (path / "x").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.123.part" / "deep").mkdir(parents=True)
    (tmp_path / ".a.123.part" / ".x.456.part").write_text("half")
    remove_temporary_files(tmp_path)
    assert list(tmp_path.iterdir()) == []
