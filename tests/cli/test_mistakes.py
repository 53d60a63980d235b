"""The natural mistakes of a new user on the command line, each with its answer.

All are made in one process, which must not have imported torch at the end: that is what keeps the
answers quick, whatever machine measures them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from buttress.cli import catalog
from buttress.cli.catalog import CATALOG, CatalogKind, catalog_names, catalog_rows
from buttress.cli.listing import KINDS

EVALUATE = "evaluate resnet_tiny --data digits"
TRAIN = "train --data digits --out runs/x"

# What was typed, and words of the answer.
MISTAKES = {
    # commands and options
    "evaluat": ("No such command 'evaluat'", "did you mean 'evaluate'?"),
    "eval": ("did you mean 'evaluate'",),
    "study lst": ("did you mean 'list'?",),
    "data fetch digits": ("No such command 'fetch'",),
    f"{EVALUATE} --suit clean": ("No such option", "--suite"),
    "evaluate resnet_tiny --dataset digits": ("No such option", "--data"),
    "list modls": ("cannot list 'modls'", "did you mean 'models'"),
    # models
    "evaluate runs/nosuch": ("runs/nosuch does not exist", "`buttress list sources`"),
    "evaluate weights.pth --data digits": ("weights.pth does not exist",),
    "evaluate resnet10t --data digits": ("'resnet10t'", "did you mean 'timm:resnet10t'?"),
    "evaluate resnet_tny --data digits": ("did you mean 'resnet_tiny'",),
    "evaluate timm:resnet10 --data digits": ("timm has no model 'resnet10'", "resnet10t"),
    "evaluate net.py --data digits": ("file.py:function", "net.py:build"),
    "evaluate net.py:build --data digits": ("the file net.py does not exist",),
    f"{TRAIN} --recipe quickstart-at --model resnet10t": ("did you mean 'timm:resnet10t'?",),
    "doctor runs/nosuch": ("runs/nosuch does not exist",),
    "finetune runs/nosuch --data digits --out runs/y": ("runs/nosuch does not exist",),
    "analyze sparsity runs/nosuch": ("runs/nosuch does not exist",),
    "export runs/nosuch --to out": ("run runs/nosuch does not exist",),
    # data
    "evaluate resnet_tiny": ("--data is required", "--data cifar10"),
    "evaluate resnet_tiny --data cifar-1": ("unknown dataset 'cifar-1'", "did you mean 'cifar10'"),
    "evaluate resnet_tiny --data my/images": ("there is no such folder", "folder:PATH"),
    "evaluate resnet_tiny --data folder:my/images": ("my/images does not exist",),
    "evaluate resnet_tiny --data foldr:my": ("did you mean 'folder'",),
    "data get cifr10": ("did you mean 'cifar10'",),
    # suites and threat models
    f"{EVALUATE} --suite quikstart": ("unknown suite or attack", "did you mean 'quickstart'"),
    f"{EVALUATE} --suite pgd-lnf": ("did you mean 'pgd-linf'",),
    f"{EVALUATE} --suite clean,pdg-linf": ("unknown attack 'pdg'", "did you mean 'pgd'"),
    f"{EVALUATE} --suite pgd:L3:1": ("the threat model must be one of", "L3"),
    f"{EVALUATE} --suite pgd:Linf:8": ("write 8/255",),
    f"{EVALUATE} --suite corruption:fogg": ("did you mean 'fog'",),
    f"{EVALUATE} --suite mine.yaml": ("suite file mine.yaml does not exist",),
    f"{EVALUATE} --eps 8": ("write 8/255",),
    f"{EVALUATE} --eps big": ("a fraction like 8/255", "big"),
    f"{EVALUATE} --threat Linf:8/255 --eps 8/255": ("given once",),
    f"{EVALUATE} --norm Lmax": ("the threat model must be one of", "Lmax"),
    f"{EVALUATE} --suite fast --eps 4/255": ("'fast' has attacks under L1, L2, Linf", "fast-linf"),
    # the rest
    f"{EVALUATE} --device gpu": ("--device must be one of auto, cpu, cuda", "a GPU is cuda"),
    f"{TRAIN} --model vit_tiny --recipe quickstart": ("unknown recipe", "'quickstart-at'"),
    f"{TRAIN} --model vit_tiny --recipe my.yaml": ("recipe file my.yaml does not exist",),
    f"{TRAIN} --model vit_tiny --recipe quickstart-at --norm L2": ("--norm needs --eps",),
    "analyze sparsty runs/r1": ("unknown analysis 'sparsty'", "did you mean 'sparsity'"),
    "study plan tabel1": ("unknown study 'tabel1'", "did you mean 'table1'"),
    "search dpth": ("unknown search 'dpth'", "`buttress list searches`"),
    "compare runs/a runs/b": ("runs/a",),
    "report runs/nosuch": ("runs/nosuch",),
}

ANSWERED = [f"list {kind}" for kind in KINDS] + ["--help", "study list", "list models --json"]

PROGRAM = """
import contextlib, io, json, sys
from buttress.cli.main import run_cli
answers = []
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_cli(line.split())
    answers.append([code, out.getvalue(), err.getvalue(), "torch" in sys.modules])
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with a current index."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUTTRESS_CACHE", str(folder))
        for kind in CATALOG:
            catalog_rows(kind)
    return folder


def answers(lines: list[str], index: Path, folder: Path) -> dict[str, list[object]]:
    """Code, stdout, stderr and whether torch is loaded, of commands in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(lines), capture_output=True, text=True,
        check=True, cwd=folder, env={**os.environ, "BUTTRESS_CACHE": str(index)},
    )  # fmt: skip
    return dict(zip(lines, json.loads(done.stdout), strict=True))


def test_mistakes_are_answered_without_torch(index: Path, tmp_path: Path) -> None:
    for line, (code, out, err, has_torch) in answers([*MISTAKES], index, tmp_path).items():
        assert code == 2, (line, err)
        assert out == "", line
        assert [w for w in MISTAKES[line] if w not in str(err)] == [], (line, err)
        assert "Traceback" not in str(err)
        assert not has_torch, line


def test_lists_and_help_are_answered_without_torch(index: Path, tmp_path: Path) -> None:
    for line, (code, out, _, has_torch) in answers(ANSWERED, index, tmp_path).items():
        assert code == 0, line
        assert out
        assert not has_torch, line


@pytest.mark.parametrize("kind", CATALOG)
def test_the_index_has_what_the_registries_have(
    kind: str, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUTTRESS_CACHE", str(index))
    assert catalog_rows(kind) == json.loads(json.dumps(CATALOG[kind].rows()))


def test_a_changed_source_and_a_broken_index_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, names = tmp_path / "attacks.py", ["one"]
    source.write_text("1")
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    kind = CatalogKind(lambda: [{"name": name} for name in names], (str(source),))
    monkeypatch.setitem(CATALOG, "attacks", kind)
    monkeypatch.setattr(catalog, "PACKAGE", tmp_path)
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "catalog.py").write_text("")
    assert catalog_names("attacks") == ["one"]
    names.append("two")
    assert catalog_names("attacks") == ["one"]  # from the index: no source has changed
    source.write_text("2")
    assert catalog_names("attacks") == ["one", "two"]
    names.append("three")
    (file,) = (tmp_path / "cache" / "catalog").iterdir()
    file.write_text("{")
    assert catalog_names("attacks") == ["one", "two", "three"]
    names.append("four")
    monkeypatch.setenv("BUTTRESS_CACHE", str(source / "not a folder"))
    assert catalog_names("attacks") == names  # the cache cannot be written
