from __future__ import annotations

import io
import os
import pickle
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buttress.data import archives
from buttress.data.archives import ArrayUnpickler, check_md5, unpack
from buttress.errors import DataError
from buttress.system.progress import SilentProgress
from small_sets import md5, tar, write, zipped

FILES = {"top/a.txt": b"a" * 5000, "top/deep/b.bin": os.urandom(5000)}


def make(kind: str, path: Path, files: dict[str, bytes]) -> Path:
    return zipped(path / "x.zip", files) if kind == "zip" else tar(path / f"x.{kind}", files)


@pytest.mark.parametrize("kind", ["tgz", "tar", "zip"])
class TestUnpack:
    def test_gives_the_files(self, kind: str, tmp_path: Path) -> None:
        unpack(make(kind, tmp_path, FILES), tmp_path / "out", SilentProgress())
        assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES

    @pytest.mark.parametrize(
        "name", ["../evil", "/tmp/evil", "top/../../evil", "top\\..\\evil", "C:/evil"]
    )
    def test_refuses_a_way_outside(self, kind: str, name: str, tmp_path: Path) -> None:
        path = make(kind, tmp_path, {**FILES, name: b"x"})
        with pytest.raises(DataError, match="points outside"):
            unpack(path, tmp_path / "in" / "out", SilentProgress())
        assert not list(tmp_path.rglob("evil"))

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
    def test_names_a_truncated_archive(self, kind: str, share: float, tmp_path: Path) -> None:
        path = make(kind, tmp_path, FILES)
        whole = path.read_bytes()[:11_000] if kind == "tar" else path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match="is not a complete"):
            unpack(path, tmp_path / "out", SilentProgress())

    def test_stops_where_it_grows_too_much(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Zeros pack to a thousandth: what is written is bounded by the archive's own size."""
        monkeypatch.setattr(archives, "MIN_UNPACKED_LIMIT", 50_000)
        bomb = make(kind, tmp_path, {"zeros": bytes(4 << 20)})
        if kind == "tar":
            unpack(bomb, tmp_path / "out", SilentProgress())  # not packed: as large as it says
            return
        with pytest.raises(DataError, match="far more than its own size"):
            unpack(bomb, tmp_path / "out", SilentProgress())
        assert sum(f.stat().st_size for f in (tmp_path / "out").rglob("*")) <= 1 << 20

    def test_bounds_the_number_of_files(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archives, "MAX_FILES", 1)
        with pytest.raises(DataError, match="more than 1 files"):
            unpack(make(kind, tmp_path, FILES), tmp_path / "out", SilentProgress())

    @pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("x" * 300, "y")])
    def test_names_a_file_that_cannot_be_written(
        self, kind: str, names: tuple[str, str], tmp_path: Path
    ) -> None:
        path = make(kind, tmp_path, {name: b"x" for name in names})
        with pytest.raises(DataError, match="which cannot be written"):
            unpack(path, tmp_path / "out", SilentProgress())

    def test_stops_at_the_limit(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 9_999)
        with pytest.raises(DataError, match="far more than its own size"):
            unpack(make(kind, tmp_path, FILES), tmp_path / "out", SilentProgress())


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
)
def test_links_in_tar_archives_are_refused(kind: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = kind, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="the link 'top/link'"):
        unpack(tmp_path / "x.tar", tmp_path / "out", SilentProgress())


def test_links_in_zip_archives_are_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="the link 'link'"):
        unpack(tmp_path / "x.zip", tmp_path / "out", SilentProgress())


def test_md5(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"x"})
    assert check_md5(tmp_path / "a", md5(tmp_path / "a")) == tmp_path / "a"
    with pytest.raises(DataError, match="was expected; download it again"):
        check_md5(tmp_path / "a", "0" * 32)


def test_pickles_of_arrays_scalars_and_plain_values() -> None:
    value: dict[str, Any] = {
        "data": np.arange(3),
        "n": np.int64(4),
        "name": "x",
        "list": [1, 2.5, None],
    }
    for protocol in (3, 4, 5):
        content = pickle.dumps(value, protocol)
        again = ArrayUnpickler(io.BytesIO(content)).load()
        assert np.array_equal(again.pop("data"), value["data"])
        assert again == {k: v for k, v in value.items() if k != "data"}
    with pytest.raises(pickle.UnpicklingError, match="only numpy arrays are allowed"):
        ArrayUnpickler(io.BytesIO(pickle.dumps(os.system))).load()
