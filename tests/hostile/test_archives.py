"""Archives and arrays from elsewhere: ways out, links, bombs, wrong numbers."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buttress.data import Dataset, load_dataset
from buttress.data.archives import read_members, unpack
from buttress.system.progress import SilentProgress
from hostile_cases import CUTS, cut, flipped, guarded, refusal, unless_refused

FILES = {"top/a.txt": b"a" * 3000, "top/deep/b.bin": bytes(range(256)) * 8}
KINDS = ("tar", "tgz", "zip")
OUTSIDE = (
    "/evil", "//evil", "../evil", "top/../../evil", "..", "top/..", "..\\evil", "C:\\evil",
    "\\evil", "./../evil", "top/../../../../../../tmp/evil",
)  # fmt: skip
ODD_NAMES = ("a b", "été", "漢字", "-rf", "$(x)", "top//double", "./here", "x" * 200)


def tar_of(files: dict[str, bytes], packed: bool = False) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if packed else "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def archive_of(kind: str, files: dict[str, bytes]) -> bytes:
    return zip_of(files) if kind == "zip" else tar_of(files, kind == "tgz")


def unpacked(content: bytes, kind: str, folder: Path) -> bool:
    """Whether an archive was unpacked; if not, it was refused. Nothing is written elsewhere."""
    path, out = folder / f"x.{kind}", folder / "place" / "out"
    path.write_bytes(content)
    out.parent.mkdir()

    def whole() -> bool:
        unpack(path, out, SilentProgress())
        return True

    with guarded(folder, inside=out):
        done = unless_refused(whole, f"x.{kind}")
    assert not Path("/evil").exists()
    return done is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OUTSIDE)
def test_ways_out(name: str, kind: str, tmp_path: Path) -> None:
    assert not unpacked(archive_of(kind, {**FILES, name: b"x"}), kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_that_are_good(name: str, kind: str, tmp_path: Path) -> None:
    assert unpacked(archive_of(kind, {**FILES, name: b"x"}), kind, tmp_path)
    assert (tmp_path / "place" / "out" / name).read_bytes() == b"x"


IMPOSSIBLE = [
    (name, kind)
    for name in ("", ".", "top", "top/a.txt/inside", "x" * 5000)
    for kind in KINDS
    if name or kind != "zip"  # Python writes no zip with an empty name
]


@pytest.mark.parametrize(("name", "kind"), IMPOSSIBLE)
def test_names_that_no_file_can_have(name: str, kind: str, tmp_path: Path) -> None:
    content = archive_of(kind, {**FILES, name: b"x"})
    assert not unpacked(content, kind, tmp_path) or name in ("", ".", "top")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", CUTS[:-1])
def test_truncated(share: float, kind: str, tmp_path: Path) -> None:
    whole = archive_of(kind, FILES)
    whole = whole[:6144] if kind == "tar" else whole  # a tar file ends with zeros that may miss
    assert not unpacked(cut(whole, share), kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_flipped(seed: int, kind: str, tmp_path: Path) -> None:
    unpacked(flipped(archive_of(kind, FILES), seed, 3), kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_many_times(kind: str, tmp_path: Path) -> None:
    for seed in range(100, 500):
        place = tmp_path / str(seed)
        place.mkdir()
        unpacked(flipped(archive_of(kind, FILES), seed, 1 + seed % 6), kind, place)


def special(kind: bytes, target: str = "/etc/passwd", **fields: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("top/a.txt")
        info.type, info.linkname = kind, target
        for name, value in fields.items():
            setattr(info, name, value)
        archive.addfile(info)
        again = tarfile.TarInfo("top/a.txt")
        again.size = 1
        archive.addfile(again, io.BytesIO(b"x"))
    return out.getvalue()


def negative_size() -> bytes:
    """A file of less than nothing: some readers pass it again and again."""
    content = bytearray(tar_of({"a": b"x" * 600}))
    content[124:136] = b"\xff" * 8 + struct.pack(">i", -1024)
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


def sparse() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("top/zeros")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.name": "top/zeros",
            "GNU.sparse.size": str(1 << 40),
            "GNU.sparse.map": "0,0",
        }
        archive.addfile(info)
    return out.getvalue()


def pax(**headers: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a")
        info.pax_headers = headers
        archive.addfile(info)
    return out.getvalue()


def zip_with(change: Callable[[zipfile.ZipInfo], None]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("link")
        change(info)
        archive.writestr(info, "/etc/passwd")
    return out.getvalue()


def marked_encrypted() -> bytes:
    content = bytearray(zip_of(FILES))
    content[6] |= 1
    place = content.index(b"PK\x01\x02")
    content[place + 8] |= 1
    return bytes(content)


def wrong_crc() -> bytes:
    content = zip_of({"a": b"hello hello hello"})
    crc = struct.pack("<I", zlib.crc32(b"hello hello hello"))
    return content.replace(crc, b"\0\0\0\0")


def link(info: zipfile.ZipInfo) -> None:
    info.external_attr = 0o120777 << 16


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a link": ("tar", partial(special, tarfile.SYMTYPE)),
    "a link inside": ("tar", partial(special, tarfile.SYMTYPE, "b.txt")),
    "a hard link": ("tar", partial(special, tarfile.LNKTYPE)),
    "a hard link inside": ("tar", partial(special, tarfile.LNKTYPE, "top/b")),
    "a pipe": ("tar", partial(special, tarfile.FIFOTYPE)),
    "a device": ("tar", partial(special, tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "a block device": ("tar", partial(special, tarfile.BLKTYPE, devmajor=8, devminor=0)),
    "less than nothing": ("tar", negative_size),
    "zeros that are not there": ("tar", sparse),
    "a size that is no number": ("tar", partial(pax, size="many")),
    "a path of the extended kind": ("tar", partial(pax, path="../../evil")),
    "a map that is none": ("tar", partial(pax, **{"GNU.sparse.map": "x,y"})),
    "text": ("tar", lambda: b"an archive, honestly\n" * 100),
    "text as tgz": ("tgz", lambda: b"an archive, honestly\n" * 100),
    "text as zip": ("zip", lambda: b"an archive, honestly\n" * 100),
    "a packed text": ("tgz", lambda: gzip.compress(b"an archive\n" * 100)),
    "a link in zip": ("zip", lambda: zip_with(link)),
    "a password": ("zip", marked_encrypted),
    "a wrong checksum": ("zip", wrong_crc),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    kind, make = REFUSED[name]
    done = unpacked(make(), kind, tmp_path)
    # What Python itself passes over must not have become a file of any other size.
    assert not done or name in ("a size that is no number", "a map that is none")


MEMBERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a way out beside it": (lambda: tar_of({**FILES, "../evil": b"x"}), "points outside"),
    "less than nothing": (negative_size, "x.tar"),
    "not there": (lambda: tar_of({"other": b""}), "does not contain top/a.txt"),
    "a link in its place": (lambda: special(tarfile.SYMTYPE), ""),
    "packed and broken": (lambda: flipped(tar_of(FILES, True), 3, 9), "x.tar"),
    "a bomb": (lambda: special(tarfile.REGTYPE, size=1 << 45), "x.tar"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_only_named_files_are_read(name: str, tmp_path: Path) -> None:
    make, says = MEMBERS[name]
    (tmp_path / "x.tar").write_bytes(make())
    with guarded(tmp_path):
        if name == "a link in its place":  # a later file of that name is read, the link is not
            assert read_members(tmp_path / "x.tar", ("top/a.txt",)) == {"top/a.txt": b"x"}
            return
        refusal(lambda: read_members(tmp_path / "x.tar", ("top/a.txt",)), says)


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **{"image": IMAGES, "label": LABELS, **arrays})
    return out.getvalue()


def raw_npz(image: bytes, label: bytes | None = None) -> bytes:
    out = io.BytesIO()
    np.save(out, LABELS)
    return zip_of({"image.npy": image, "label.npy": out.getvalue() if label is None else label})


def header(text: str) -> bytes:
    body = text.encode() + b" " * (118 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('attacked', 'w')",)


ARRAYS: dict[str, Callable[[], bytes]] = {
    **{f"cut at {share}": partial(cut, npz(), share) for share in CUTS},
    "empty": lambda: b"",
    "text": lambda: b"images",
    "a bare array": lambda: header("{'descr': '|u1', 'fortran_order': False, 'shape': (4,)}"),
    "no images": lambda: zip_of({"label.npy": b""}),
    "objects": lambda: npz(image=np.array([Runs(), {}], dtype=object)),
    "labels of objects": lambda: npz(label=np.array([Runs()] * 12, dtype=object)),
    "a pickle": lambda: raw_npz(pickle.dumps(Runs())),
    "an archive inside": lambda: raw_npz(npz()),
    "a huge shape": lambda: raw_npz(
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 8, 8, 3)}")
    ),
    "a negative shape": lambda: raw_npz(
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (-4, 8, 8, 3)}")
    ),
    "a header that runs": lambda: raw_npz(
        header("__import__('os').mkdir('attacked')")
    ),
    "float images": lambda: npz(image=IMAGES / 255),
    "images of NaN": lambda: npz(image=np.full((12, 8, 8, 3), np.nan)),
    "int images": lambda: npz(image=IMAGES.astype(np.int64)),
    "bool images": lambda: npz(image=IMAGES > 3),
    "complex images": lambda: npz(image=IMAGES * 1j),
    "grey images": lambda: npz(image=IMAGES[..., 0]),
    "channels first": lambda: npz(image=IMAGES.transpose(0, 3, 1, 2)),
    "no image": lambda: npz(image=IMAGES[:0], label=LABELS[:0]),
    "images without pixels": lambda: npz(image=IMAGES[:, :0]),
    "fewer labels": lambda: npz(label=LABELS[:5]),
    "labels in two columns": lambda: npz(label=np.stack([LABELS, LABELS], 1)),
    "a scalar label": lambda: npz(label=np.int64(3)),
    "float labels": lambda: npz(label=LABELS / 2),
    "NaN labels": lambda: npz(label=LABELS * np.nan),
    "labels below zero": lambda: npz(label=LABELS - 1),
    "a huge label": lambda: npz(label=np.where(LABELS == 1, 1 << 40, LABELS)),
    "a label beyond 63 bits": lambda: npz(label=np.full(12, (1 << 64) - 1, np.uint64)),
    "labels as texts": lambda: npz(label=np.array(list("abcabcabcabc"))),
    "bool labels": lambda: npz(label=LABELS > 0),
    "a password": marked_encrypted,
    "packed zeros": lambda: npz(image=np.zeros((400_000, 8, 8, 3), np.uint8)),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.npz").write_bytes(ARRAYS[name]())
    with guarded(tmp_path, inside=tmp_path / "cache"):
        for _ in range(2):  # what was refused is refused again
            refusal(lambda: load_dataset(f"npz:{tmp_path / 'own.npz'}", "train"), "own.npz")
    assert not any((tmp_path / "cache" / "extra").glob("*"))


def test_good_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    for k, content in enumerate((npz(), npz(label=LABELS.astype(np.uint8)), npz(more=LABELS))):
        (tmp_path / f"{k}.npz").write_bytes(content)
        data = load_dataset(f"npz:{tmp_path}/{k}.npz", "train")
        assert data.labels.tolist() == LABELS.tolist()
        assert np.array_equal((data.images * 255).round().byte().permute(0, 2, 3, 1), IMAGES)


X, Y = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
OWN: dict[str, tuple[Any, Any]] = {
    "NaN images": (X * torch.nan, Y),
    "images beyond 1": (X * 255, Y),
    "images below 0": (X - 0.5, Y),
    "int images": ((X * 255).int(), Y),
    "bool images": (X > 0.5, Y),
    "complex images": (X * 1j, Y),
    "sparse images": (X.to_sparse(), Y),
    "images without numbers": (X.to("meta"), Y),
    "texts": ([["a"]], Y),
    "rows of two lengths": ([[1, 2], [3]], Y),
    "None": (None, Y),
    "three axes": (X[0], Y),
    "channels last": (X.permute(0, 2, 3, 1), Y),
    "no image": (X[:0], Y[:0]),
    "no pixels": (X[:, :, :0], Y),
    "fewer labels": (X, Y[:3]),
    "float labels": (X, Y.float()),
    "NaN labels": (X, Y * torch.nan),
    "labels below zero": (X, Y - 1),
    "huge labels": (X, Y + (1 << 40)),
    "labels as texts": (X, list("abcabc")),
    "labels None": (X, None),
    "labels as objects": (X, np.array([{}] * 6, dtype=object)),
    "sparse labels": (X, Y.to_sparse()),
}


@pytest.mark.parametrize("name", OWN)
def test_arrays_of_your_own(name: str, tmp_path: Path) -> None:
    images, labels = OWN[name]
    with guarded(tmp_path):
        refusal(lambda: Dataset.from_arrays(images, labels))


def test_odd_arrays_that_are_good() -> None:
    flipped_rows = X.numpy()[::-1]
    for images in (X, X.double(), X.half(), flipped_rows, np.asfortranarray(X), X.tolist()):
        assert len(Dataset.from_arrays(images, Y)) == 6
    wide = X.numpy().astype(np.longdouble)
    assert Dataset.from_arrays(wide, Y.to(torch.uint8)).images.dtype == torch.float32


SHARDS: dict[str, tuple[dict[str, bytes], dict[str, Any] | None]] = {
    "a class of 30 digits": ({"a.png": b"", "a.cls": b"9" * 30}, None),
    "a class below zero": ({"a.png": b"", "a.cls": b"-1"}, None),
    "a class that is a word": ({"a.png": b"", "a.cls": b"cat"}, None),
    "no class": ({"a.png": b""}, None),
    "no image": ({"a.cls": b"1"}, None),
    "an image twice": ({"a.png": b"", "a.jpg": b"", "a.cls": b"1"}, None),
    "an image that is none": ({"a.png": b"x", "a.cls": b"1"}, None),
    "splits that are a list": ({}, {"splits": [1]}),
    "no splits": ({}, {"splits": {}}),
    "splits of other names": ({}, {"splits": {"other": {"filenames": ["train.tar"]}}}),
    "files that lead out": ({}, {"splits": {"train": {"filenames": ["../train.tar"]}}}),
    "files from the root": ({}, {"splits": {"train": {"filenames": ["/etc/passwd"]}}}),
    "files that are absent": ({}, {"splits": {"train": {"filenames": ["absent.tar"]}}}),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    files, info = SHARDS[name]
    root = tmp_path / "set"
    root.mkdir()
    (root / "train.tar").write_bytes(tar_of(files))
    if info is not None:
        (root / "_info.json").write_text(json.dumps(info))

    def use() -> None:
        load_dataset(f"timm:wds@{root}", "train")

    with guarded(tmp_path, inside=tmp_path / "cache"):
        refusal(use)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_shards(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    content = tar_of({"a.png": bytes(9000), "a.cls": b"1", "b.png": bytes(9000), "b.cls": b"0"})
    (tmp_path / "train.tar").write_bytes(cut(content, share))
    with guarded(tmp_path, inside=tmp_path / "cache"):
        refusal(lambda: load_dataset(f"timm:wds@{tmp_path}", "train"))


CASES = (
    3 * (len(OUTSIDE) + len(ODD_NAMES) + 5 + len(CUTS) - 1 + 15) + len(REFUSED) + 6 + len(ARRAYS)
    + 3 + len(OWN) + 7 + len(SHARDS) + 3
)  # fmt: skip
