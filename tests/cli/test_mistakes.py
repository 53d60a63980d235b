"""The natural mistakes of a new user on the command line, each with its answer.

All are made in one process, which must not have imported torch at the end: that is what keeps the
answers quick, whatever machine measures them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from buttress.cli import catalog
from buttress.cli.catalog import CATALOG, CatalogKind, catalog_names, catalog_rows
from buttress.cli.commands import main
from buttress.cli.declarations import declarations_digest
from buttress.cli.listing import KINDS
from buttress.cli.suggestions import COMMANDS, DATA_COMMANDS, EXAMPLES, OPTIONS
from buttress.studies import list_searches, list_studies, load_search, load_study
from buttress.training import list_recipes, load_recipe

EVALUATE = "evaluate resnet_tiny --data digits"
TRAIN = "train --data digits --out runs/x"

# What was typed, and words of the answer.
MISTAKES = {
    # commands and options
    "evaluat": ("No such command 'evaluat'", "did you mean 'evaluate'?"),
    "eval": ("did you mean `buttress evaluate MODEL --data NAME`?",),
    "help": ("did you mean `buttress --help`?",),
    "version": ("did you mean `buttress --version`?",),
    "models": ("did you mean `buttress list models`?",),
    "attack pgd": ("evaluate MODEL --data NAME --suite pgd-linf`?",),
    "benchmark resnet_tiny": ("--suite robustbench-linf`?",),
    "data list": ("did you mean `buttress list datasets`?",),
    "data download cifar10": ("did you mean `buttress data get NAME`?",),
    "list model": ("did you mean 'models'?",),
    f"{EVALUATE} --attack pgd": ("No such option '--attack'; write --suite",),
    f"{EVALUATE} --epsilon 8/255": ("write --eps",),
    f"{EVALUATE} --n-examples 4": ("write --limit",),
    f"{EVALUATE} --n_ex 4": ("write --limit",),
    f"{EVALUATE} --gpu 0": ("write --device cuda",),
    f"{EVALUATE} --steps 20": ("`args: {steps: 20}`",),
    f"{TRAIN} --model vit_tiny --recipe quickstart-at --epochs 3": ("write --set epochs=10",),
    f"{TRAIN} --model vit_tiny --recipe quickstart-at --lr 3": ("write --set optimizer.lr",),
    "evaluate resnet_tiny digits": ("extra argument (digits)", "Example: buttress evaluate "),
    "train resnet_tiny --data digits": ("Missing option '--model'", "Example: buttress train "),
    "train --model resnet_tiny --data digits": ("'--recipe'", "`buttress list recipes`"),
    "report": ("Missing argument", "Example: buttress report runs --out report"),
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
    "evaluate zoo:mlp_mixer_min --data cifar10_sample": ("did you mean 'zoo:mlp_mixer_mini'",),
    "evaluate zoo:mlp_mixer_mini --data cifr10": (
        "unknown dataset 'cifr10'",
    ),  # the model is known
    "evaluate resnet18 --data digits": ("did you mean 'timm:resnet18'?",),
    "evaluate Carmon2019Unlabeled --data digits": ("robustbench:cifar10/Linf/Carmon2019Unlabeled",),
    "evaluate robustbench:Standard --data digits": ("robustbench:DATA/THREAT/NAME",),
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
    "evaluate resnet_tiny --data mnist": ("Images of your own are folder:PATH",),
    "evaluate resnet_tiny --data CIFAR-10": ("did you mean 'cifar10'",),
    "evaluate resnet_tiny --data cifar100": ("run `buttress data get cifar100`",),
    f"{TRAIN.replace('digits', 'cifar10')} --model vit_tiny --recipe quickstart-at": (
        "run `buttress data get cifar10`",
    ),
    f"{EVALUATE} --split validation": ("split must be one of", "write val"),
    f"{EVALUATE} --split test[:100]": ("`limit` takes the first images only",),
    "data get cifr10": ("did you mean 'cifar10'",),
    # suites and threat models
    f"{EVALUATE} --suite quikstart": ("unknown suite or attack", "did you mean 'quickstart'"),
    f"{EVALUATE} --suite pgd-lnf": ("did you mean 'pgd-linf'",),
    f"{EVALUATE} --suite aa": ("did you mean 'autoattack'?",),
    f"{EVALUATE} --suite pgd-20": ("did you mean 'pgd'?",),
    f"{EVALUATE} --suite autoattack --eps 8/255": ("such as autoattack-linf",),
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

ANSWERED = [f"list {kind}" for kind in KINDS] + [
    "--help", "-h", "--version", "list", "study list", "list models --json", "evaluate --help",
]  # fmt: skip

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
        patch.setattr(catalog, "BUNDLED_INDEX", folder / "none.json")
        for kind in CATALOG:
            catalog_rows(kind)
    return folder


@pytest.fixture
def checkout(index: Path, tmp_path: Path) -> Path:
    """A copy of the package, as a checkout has it after its installation."""
    package = tmp_path / "src" / "buttress"
    ignored = shutil.ignore_patterns("__pycache__", "catalog.json")
    shutil.copytree(catalog.PACKAGE, package, ignore=ignored)
    (file,) = (index / "catalog").iterdir()
    shutil.copy(file, package / "catalog.json")
    return package


def answers(
    lines: list[str], index: Path, folder: Path, package: Path = catalog.PACKAGE
) -> dict[str, list[object]]:
    """Code, stdout, stderr and whether torch is loaded, of commands in one new process."""
    env = {**os.environ, "BUTTRESS_CACHE": str(index), "PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(lines), capture_output=True, text=True,
        check=True, cwd=folder, env=env,
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


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_answers_after_an_edit_need_no_torch(checkout: Path, tmp_path: Path) -> None:
    edit(checkout / "attacks" / "pgd.py", "\ndef ", "\ndef _new(): ...\n\n\ndef ")
    edit(checkout / "models" / "families" / "resnet.py", "net.maxpool = ", "net.maxpool = None or ")
    (checkout / "models" / "new_part.py").write_text("SIZE = 3\n\n\ndef part(): ...\n")
    recipes = checkout / "training" / "recipes"
    (recipes / "mine.yaml").write_text((recipes / "quickstart-at.yaml").read_text())
    found = answers([*MISTAKES, *ANSWERED], tmp_path / "cache", tmp_path, checkout)
    assert [line for line, (_, _, _, has_torch) in found.items() if has_torch] == []
    assert "\nmine " in str(found["list recipes"][1])
    edited = "models/families/resnet.py, models/new_part.py"
    assert f"Sizes are from before the last edit of {edited};" in str(found["list models"][2])


def test_no_list_has_a_name_that_is_gone(checkout: Path, tmp_path: Path) -> None:
    edit(checkout / "attacks" / "pgd.py", 'register("fgsm"', 'register("fgsm2"')
    edit(checkout / "attacks" / "__init__.py", "from buttress.attacks import fab as", "# as")
    edit(checkout / "evaluation" / "doctor" / "outputs.py", '"training_mode"', '"train_mode"')
    lines = ["list attacks", "list checks"]
    found = answers(lines, tmp_path / "cache", tmp_path, checkout)
    attacks, checks = (str(found[line][1]) for line in lines)
    assert "fgsm2 " in attacks
    assert "fgsm " not in attacks
    assert "train_mode" in checks
    assert "training_mode" not in checks


def test_every_command_with_arguments_has_an_example() -> None:
    context = click.Context(main)
    for path, command in leaf_commands(main, context):
        needs_arguments = any(p.required for p in command.params)
        assert not needs_arguments or path in EXAMPLES, path
        if path in EXAMPLES:
            assert EXAMPLES[path].startswith(f"buttress {path} ")


def leaf_commands(
    group: click.Group, context: click.Context, path: str = ""
) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full_path = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from leaf_commands(command, context, full_path)
        else:
            yield full_path, command


def test_suggested_options_and_commands_exist() -> None:
    commands = dict(leaf_commands(main, click.Context(main)))
    options = {name for command in commands.values() for p in command.params for name in p.opts}
    for answer in OPTIONS.values():
        assert not answer.startswith("--") or answer.split()[0] in options, answer
    for answer in (*COMMANDS.values(), *DATA_COMMANDS.values()):
        words = answer.split()[1:]
        assert words[0].startswith("--") or {words[0], " ".join(words[:2])} & set(commands), answer


def test_the_package_is_a_program() -> None:
    line = [sys.executable, "-m", "buttress", "--version"]
    assert subprocess.run(line, capture_output=True, check=True).stdout.startswith(b"buttress, ")


# Edits of a file, and whether its entries may have changed.
FILE = """
KIND = "usual"

@THINGS.register("one", tags=(KIND,))
def one(x):
    '''First line.

    More.
    '''
    return x

def helper(): return 1

def name(): return "two"

THINGS.register(name())(helper)
"""
EDITS = [
    ("return x", "return -x", False),
    ("More.", "Other.", False),
    ("def one(x)", "def one(x, y=1)", False),
    ("return 1", "return 2", False),
    ("return x\n", "return x\n\ndef other(): ...\n", False),
    ('"one"', '"1"', True),
    ("First line", "The first line", True),
    ('"usual"', '"rare"', True),
    ('"two"', '"2"', True),
    ("THINGS.register(name())(helper)", "", True),
]


@pytest.mark.parametrize(("old", "new", "is_changed"), EDITS)
def test_declarations(old: str, new: str, is_changed: bool) -> None:
    before, after = FILE.encode(), FILE.replace(old, new).encode()
    assert before != after
    digests = {declarations_digest("file.py", content) for content in (before, after)}
    assert (len(digests) > 1) == is_changed


def test_rows_of_presets_are_those_of_the_validated_files() -> None:
    for kind, names, load in (
        ("studies", list_studies(), load_study),
        ("searches", list_searches(), load_search),
        ("recipes", list_recipes(), load_recipe),
    ):
        rows = CATALOG[kind].rows()
        specs = [load(name) for name in names]
        assert rows == [{k: getattr(s, k) for k in rows[0]} for s in specs]


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
    source.write_text('THINGS.register("one")')
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    kind = CatalogKind(lambda: [{"name": name} for name in names], (str(source),))
    monkeypatch.setitem(CATALOG, "attacks", kind)
    monkeypatch.setattr(catalog, "PACKAGE", tmp_path)
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "catalog.py").write_text("")
    assert catalog_names("attacks") == ["one"]
    names.append("two")
    assert catalog_names("attacks") == ["one"]  # from the index: no source has changed
    source.write_text('THINGS.register("two")')
    assert catalog_names("attacks") == ["one", "two"]
    names.append("three")
    (file,) = (tmp_path / "cache" / "catalog").iterdir()
    file.write_text("{")
    assert catalog_names("attacks") == ["one", "two", "three"]
    names.append("four")
    monkeypatch.setenv("BUTTRESS_CACHE", str(source / "not a folder"))
    assert catalog_names("attacks") == names  # the cache cannot be written


def test_another_version_of_timm_keeps_the_bundled_rows_unless_it_may_have_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def rows() -> list[dict[str, str]]:
        made.append("again")
        return [{"name": f"model-{len(made)}"}]

    monkeypatch.setitem(CATALOG, "timm", CatalogKind(rows, (), ("timm",)))
    monkeypatch.setattr(catalog, "BUNDLED_INDEX", tmp_path / "bundled.json")
    monkeypatch.setattr(catalog, "_index_file", lambda: tmp_path / "own.json")
    catalog._write_index(tmp_path / "bundled.json", {"timm": CATALOG["timm"].index_entry()})
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.0")
    assert catalog_names("timm") == ["model-1"]
    assert catalog_names("timm", exact=True) == ["model-2"]
    assert catalog_names("timm") == ["model-2"]  # the exact rows are preferred from now on
    assert len(made) == 2
