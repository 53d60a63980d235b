"""Every code block of the README and the documentation runs, in small, in the order of its page."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from PIL import Image

import buttress as bt
from buttress.analysis import ANALYSES
from buttress.cli.commands import COMMANDS, main
from buttress.cli.main import run_cli
from buttress.evaluation import load_suite
from buttress.results.core import RECORD_VERSION
from buttress.results.run import Run
from buttress.results.run_spec import SPEC_VERSION
from buttress.studies import expand_study, load_study
from buttress.training import load_recipe
from doc_blocks import ROOT, Block, list_pages, parse_blocks, read_blocks, shell_commands
from onnx_file import write_onnx
from report_runs import make_run, make_spec, write_flags

ADDING = "docs/adding.md"  # changes the package, so it is run in a clone: see test_adding.py
PAGES = [page for page in list_pages() if page != ADDING and read_blocks(page)]
LONG = (  # `make test-docs` runs them too
    *(f"docs/analyses/{name}.md" for name in (
        "transformer_bound", "predict", "landscape", "sharpness", "sparsity", "lipschitz",
    )),
    "docs/architecture-search.md",
)  # fmt: skip
RUNNABLE = ("", "bash", "python", "yaml", "text")
# What stands for what cannot be had here: a download, or hours of training.
SUBSTITUTES = {
    r'(--data |data get |load_dataset\(")cifar10\b': r"\1digits",
    r"\bresnet_18\b": "resnet_tiny",
    r"\bwrn_34_r\b": "wrn_tiny",
}
TRAINING = ("epochs=2", "batch_size=16", "validation.limit=8")
LIMIT = 16
# Options added to each command, so that it takes seconds; a later option wins.
SMALL = {
    "train": ["--limit", str(LIMIT), *(w for c in TRAINING for w in ("--set", c))],
    "finetune": ["--limit", str(LIMIT), *(w for c in TRAINING for w in ("--set", c))],
    "evaluate": ["--limit", "8", "--workers", "1"],
    "doctor": ["--limit", "8"],
    "search": ["--workers", "1"],
    "study run": ["--workers", "1"],
}
QUICKSTART = ("resnet_tiny", "vit_tiny", "pvt_v2_tiny")
MINI = {"wrn_mini": "wrn_mini", "coatnet_mini": "coatnet_tiny"}
STUDY = """
title: One network
question: Does it run?
scales: [smoke, digits, mini, paper]
grid:
  base: {dataset: digits, model: resnet_tiny, train_limit: 16, recipe: quickstart-at,
         overrides: [epochs=1, batch_size=16, validation.limit=8]}
  axes: {training: {adversarial: {}}}
  suites: [quickstart]
  test_limit: 8
"""
NET = """
from torch import nn


def build(num_classes=10, in_channels=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 1024, num_classes))
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained runs under the names of the pages; made once, also for several processes."""
    name = f"trained-for-pages-{SPEC_VERSION}-{RECORD_VERSION}"  # others cannot be read
    folder = tmp_path_factory.getbasetemp().parent / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            train_runs(folder)
            (folder / "complete").touch()
    return folder


def train_runs(folder: Path) -> None:
    runs, quickstart = folder / "runs", folder / "results" / "quickstart" / "runs"
    small: dict[str, Any] = {"limit": LIMIT, "overrides": TRAINING, "device": "cpu"}
    for model in QUICKSTART:
        bt.train(model, "digits", "quickstart-at", quickstart / f"{model}-at", **small)
    bt.train("resnet_tiny", "digits", "quickstart-standard", quickstart / "resnet_tiny-0", **small)
    for name, model in MINI.items():
        for way in ("at", "vanilla"):
            bt.train(model, "digits", f"mini-{way}", runs / f"{name}-{way}", **small)
    data = bt.load_dataset("digits", "test", limit=8)
    for run in [*quickstart.iterdir(), *runs.iterdir()]:
        bt.evaluate(bt.load_model(run), data, suite="quickstart", out=run / "eval" / "quickstart")
    for name in ("r1", "r2", "vit"):
        shutil.copytree(quickstart / f"{'vit' if name == 'vit' else 'resnet'}_tiny-at", runs / name)


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a clone in which the reader has trained and collected a few things."""
    for name in ("runs", "results"):
        shutil.copytree(trained / name, tmp_path / name)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(place: Path) -> None:
    """What the pages call PATH, weights.pt, net.py, ..."""
    source = np.random.default_rng(0)
    for split, name in [(s, c) for s in ("train", "val") for c in ("cat", "dog")]:
        (place / "PATH" / split / name).mkdir(parents=True)
        for i in range(20):
            pixels = source.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "PATH" / split / name / f"{i}.png")
    np.savez(place / "1m.npz", image=source.integers(0, 255, (40, 32, 32, 3), dtype=np.uint8),
             label=np.arange(40) % 10)  # fmt: skip
    (place / "net.py").write_text(NET, encoding="utf-8")
    (place / "small.yaml").write_text(STUDY, encoding="utf-8")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    torch.save({"state_dict": net.state_dict()}, place / "weights.pt")
    write_onnx(place / "net.onnx", source.normal(size=(3072, 10)), np.zeros(10), (3, 32, 32))


def prepare_models(place: Path) -> None:
    torch.save(bt.create_model("resnet_tiny", num_classes=10).state_dict(), place / "weights.pt")


def prepare_statistics(place: Path) -> None:
    """Two networks on the same images, with several seeds of each."""
    source = np.random.default_rng(0)
    for letter, model in (("a", "vit_tiny"), ("b", "resnet_tiny")):
        for end, seed in (("", 0), ("0", 0), ("1", 1), ("2", 2)):
            run = make_run(place / "runs" / f"{letter}{end}", make_spec(model, seed=seed))
            write_flags(run, "clean", source.random(50) < 0.7, weights_digest=f"{letter}{end}")


def prepare_predict(place: Path) -> None:
    """Accuracies that differ between runs, as those of trained networks do."""
    for number, run in enumerate(sorted((place / "results" / "quickstart" / "runs").iterdir())):
        shutil.rmtree(run / "eval")
        write_flags(Run(run), "clean", np.arange(8) > number, suite="quickstart")


def prepare_export(place: Path) -> None:
    (place / "model_info").mkdir()


def prepare_finetuning(place: Path) -> None:
    shutil.rmtree(place / "runs" / "r2")  # the page makes it


PREPARE: dict[str, Callable[[Path], None]] = {
    "docs/models.md": prepare_models,
    "docs/statistics.md": prepare_statistics,
    "docs/analyses/predict.md": prepare_predict,
    "docs/export.md": prepare_export,
    "docs/finetuning.md": prepare_finetuning,
}


@pytest.fixture
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public functions, on few images and for few epochs."""
    train, finetune, load_dataset = bt.train, bt.finetune, bt.load_dataset

    def small_load(name: str, *args: Any, limit: int | None = None, **more: Any) -> Any:
        return load_dataset(name, *args, limit=min(limit or 8, 8), **more)

    def small_train(*args: Any, **more: Any) -> Any:
        return train(*args, **more, limit=LIMIT, overrides=TRAINING)

    def small_finetune(*args: Any, **more: Any) -> Any:
        return finetune(*args, **more, limit=LIMIT, overrides=TRAINING)

    monkeypatch.setattr(bt, "load_dataset", small_load)
    monkeypatch.setattr(bt, "train", small_train)
    monkeypatch.setattr(bt, "finetune", small_finetune)


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow) if p in LONG else p for p in PAGES]
)
def test_every_block_runs(page: str, place: Path) -> None:
    PREPARE.get(page, lambda _: None)(place)
    run_blocks(read_blocks(page), place)


def run_blocks(blocks: list[Block], place: Path) -> None:
    """Runs the blocks of a page one after the other; Python blocks share their names."""
    names: dict[str, Any] = {}
    printed: str | None = None  # by the block before, where that is Python
    for block in blocks:
        assert block.language in RUNNABLE, f"{block.where}: {block.language!r} is not run"
        text = substitute(block.text)
        if block.not_run:
            continue
        if block.file:
            (place / block.file).write_text(text, encoding="utf-8")
        if block.language == "python":
            names = names or {"__name__": "page", **given_names()}
            printed = run_python(block, text, names)
        elif block.language == "yaml":
            check_yaml(block, text, place)
        elif block.language == "text":
            same = printed is None or block.text == printed
            assert same, f"{block.where}: the block above prints something else"
        else:
            printed = None
            run_shell(block, text, place)


def substitute(text: str) -> str:
    for pattern, other in SUBSTITUTES.items():
        text = re.sub(pattern, other, text)
    return text


def given_names() -> dict[str, Any]:
    """What the pages take for granted: the package, a model, images and their labels."""
    data = bt.load_dataset("digits", "test", limit=8)
    model = bt.create_model("resnet_tiny", num_classes=10, seed=0).eval()
    return {"bt": bt, "model": model, "data": data, "x": data.images[:4], "y": data.labels[:4]}


def run_python(block: Block, text: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    # Line numbers in tracebacks are those of the page.
    code = compile("\n" * block.line + text, str(ROOT / block.page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def check_yaml(block: Block, text: str, place: Path) -> None:
    """A whole file is loaded as what it is; a part is put into such a file first."""
    if block.file:
        return check_file(place / block.file)
    whole = place / "whole.yaml"
    part = yaml.safe_load(text)
    if block.part == "recipe":
        whole.write_text(yaml.safe_dump({"epochs": 1, "optimizer": {"lr": 0.1}} | part))
        load_recipe(whole)
    elif block.part == "grid":
        grid = {**part, "base": {"dataset": "digits", "recipe": "quickstart-at"} | part["base"]}
        study = {"title": "A", "question": "B?", "grid": {**grid, "suites": ["quickstart"]}}
        whole.write_text(yaml.safe_dump(study))
        assert len(expand_study(load_study(whole), "paper").runs) > 1
    else:
        pytest.fail(f"{block.where}: a YAML block needs a comment <!-- file: ... -->")
    return None


def check_file(path: Path) -> None:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(raw, list) or "entries" in raw:
        load_suite(path)
    elif "grid" in raw:
        load_study(path)
    else:
        load_recipe(path)


def run_shell(block: Block, text: str, place: Path) -> None:
    for command in shell_commands(text, place):
        program, *args = command.words
        said = io.StringIO()
        with contextlib.redirect_stdout(said) if command.output else contextlib.nullcontext():
            if program == "make":
                check_make_targets(args, block)
            elif program in ("buttress", ".venv/bin/buttress"):
                code = run_command(args, place)
                assert code == 0, f"{block.where}: {' '.join(command.words)} ended with {code}"
            else:
                pytest.fail(f"{block.where}: {program!r} can be run here no more than it is marked")
        if command.output:
            (place / command.output).write_text(said.getvalue(), encoding="utf-8")


def check_make_targets(targets: list[str], block: Block) -> None:
    """CI runs the targets themselves."""
    known = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert f"\n{target}:" in known, f"{block.where}: make {target}"


def run_command(args: list[str], place: Path) -> int:
    if args[0] == "quickstart":
        return prepared_quickstart(args, place)
    if args[0] == "study" and args[1] in ("run", "status", "report"):
        load_study(args[2])  # exists; one that takes seconds is run in its place
        args = [*args[:2], "small.yaml", *args[3:]]
    name = " ".join(args[:2]) if args[0] == "study" else args[0]
    return run_cli([*args, *SMALL.get(name, []), *few(args)])


def few(args: list[str]) -> list[str]:
    """Options that make the analysis of a command short."""
    if args[0] != "analyze":
        return []
    short = ANALYSES.spec(args[1]).example_args
    return [w for name, value in short.items() for w in ("--set", f"{name}={json.dumps(value)}")]


def prepared_quickstart(args: list[str], place: Path) -> int:
    """Its options are parsed and its runs are there; CI runs `make quickstart` itself."""
    with main.make_context("buttress", list(args)) as context:
        command = main.get_command(context, args[0])
        assert command is not None
        out: Path = command.make_context(args[0], args[1:], parent=context).params["out"]
    if place / out != place / "results" / "quickstart":
        shutil.copytree(place / "results" / "quickstart", place / out)
    return 0


def test_what_is_not_run_says_why() -> None:
    marked = [block for page in list_pages() for block in read_blocks(page) if block.not_run]
    for block in marked:
        print(f"{block.where}: {block.not_run}")
    assert marked
    assert all(block.not_run.startswith("needs ") for block in marked)
    every = sum(len(read_blocks(page)) for page in list_pages())
    assert len(marked) < every / 8, "most of what a reader would run is run"


def test_the_files_that_the_readme_links_to_are_there() -> None:
    for path in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


INLINE = [
    (page, line)
    for page in list_pages()
    for line in re.findall(r"`buttress ([a-z][^`]*)`", (ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "line"), INLINE)
def test_commands_within_a_line_exist(page: str, line: str) -> None:
    assert line.split()[0] in COMMANDS, page


MADE_UP = """
# Page

<!-- not run: needs an hour -->

```
buttress train
```

<!-- file: a.yaml -->
```yaml
entries: [clean]
```

Text between a comment and a block ends the comment.

```{include} x.md
```

```ruby
puts 1
```
"""


def test_blocks_are_read_with_what_is_said_of_them(place: Path) -> None:
    first, second, third = blocks = parse_blocks(MADE_UP, "page.md")
    assert (first.line, first.not_run, first.text) == (6, "needs an hour", "buttress train\n")
    assert (second.language, second.file, second.not_run) == ("yaml", "a.yaml", "")
    assert (third.language, third.file, third.where) == ("ruby", "", "page.md:20")
    run_blocks(blocks[:2], place)
    with pytest.raises(AssertionError, match=r"page\.md:20: 'ruby' is not run"):
        run_blocks(blocks, place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nbuttress evaluate runs/none\n```", "ended with 2"),
        ("```\ncurl example.org\n```", "'curl'"),
        ("```\nmake nothing\n```", "make nothing"),
        ("```yaml\nepochs: 1\n```", "needs a comment"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "prints something else"),
    ],
)
def test_a_block_that_does_not_run_fails(text: str, said: str, place: Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=said):
        run_blocks(parse_blocks(text, "page.md"), place)
