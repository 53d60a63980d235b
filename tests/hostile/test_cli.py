"""Strange words for every option of every command: a line and an exit code, never a traceback."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from buttress.cli.commands import COMMANDS, main
from buttress.cli.main import run_cli
from buttress.errors import UserError
from buttress.models.loading.checkpoint import load_checkpoint, save_checkpoint
from buttress.results.model_code import read_model_code
from buttress.results.run import Run
from conftest import thinned
from exported_runs import finished_run
from hostile_cases import guarded
from report_runs import ROBUST, make_run, make_spec

# No word may name a real place outside of the test: commands would go to work there.
STRANGE = (
    "", " ", "-1", "0", "nan", "-inf", "1e999", "9" * 400, "../../evil", "/dev/null/x", "a\nb",
    "été🦆", "\udcff", "%s%n{0}", "$(touch attacked)", "-", "{}", "[", "None", "x" * 5000,
    "file:///etc/passwd", "timm:", "folder:", "x.py:", ":", "=", "a=b=c", "a.b.c=[", "🦆=1",
    "nowhere.yaml", "__init__.py:os",
)  # fmt: skip
NET = """from torch import nn
def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
"""
STUDY = """question: Does it hold?
grid:
  base: {model: vit_tiny, dataset: digits, train_limit: 8, recipe: quickstart-standard}
  suites: [quickstart]
  columns: {clean: {metric: clean}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli")
    (root / "net.py").write_text(NET)
    (root / "study.yaml").write_text(STUDY)
    (root / "bench.json").write_text('{"machine": {}, "rows": []}')
    make_run(root / "runs" / "r1", flags=ROBUST)
    code = read_model_code(f"{root}/net.py:net")
    own = make_spec(f"{root}/net.py:net").model_copy(update={"model_sha256": code.sha256})
    make_run(root / "own", own)
    trained = finished_run(root / "trained")
    save_checkpoint(root / "weights.pt", load_checkpoint(trained.checkpoint("best"))["model"])
    return root


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work that takes long ends at once, with an error that says that it would have begun."""

    def begun(*args: Any, **kwargs: Any) -> Any:
        raise UserError("the work would begin here")

    monkeypatch.setattr(Run, "open", begun)
    monkeypatch.setattr("time.sleep", begun)
    for module, name in (
        ("cli.evaluate", "_run_shard_processes"), ("data", "download_dataset"),
        ("studies.runner", "run_jobs"), ("studies.runner", "run_study"),
        ("studies.search.run", "run_search"), ("bench.attacks", "train_if_missing"),
        ("bench.attacks", "run_case"), ("bench.training", "run_trainers"),
        ("bench.training", "run_steps"),
        ("evaluation.diagnose", "_run_doctor_attacks"),
    ):  # fmt: skip
        monkeypatch.setattr(importlib.import_module(f"buttress.{module}"), name, begun)
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    return inside


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


def params_of(path: tuple[str, ...]) -> list[click.Parameter]:
    command: Any = main
    for name in path:
        command = command.get_command(click.Context(command), name)
    return list(command.params)


def good(path: tuple[str, ...], place: Path) -> dict[str, str]:
    """Arguments and options with which a command does little, but comes to its work."""
    run, trained = str(place / "runs" / "r1"), str(place / "trained")
    study = {"study": f"{place}/study.yaml", "--out": "out"}
    known: dict[tuple[str, ...], dict[str, str]] = {
        ("list",): {"kind": "analyses"},
        ("data", "get"): {"name": "digits"},
        ("train",): {"--model": "vit_tiny", "--data": "digits", "--recipe": "quickstart-at",
                     "--out": "out"},
        ("finetune",): {"source": f"{place}/weights.pt", "--model": "vit_tiny", "--data": "digits",
                        "--recipe": "quickstart-at", "--out": "out"},
        ("evaluate",): {"model_source": f"{place}/net.py:net", "--data": "digits", "--limit": "4",
                        "--suite": "clean,clean"},
        ("analyze",): {"name": "sparsity", "runs": trained},
        ("doctor",): {"model_source": f"{place}/net.py:net", "--data": "digits", "--limit": "4"},
        ("export",): {"run": trained, "--to": "out"},
        ("search",): {"search": "digits-depth", "--out": "out"},
        ("bench", "attacks"): {"--data": "digits"},
        ("bench", "training"): {"--data": "digits"},
        ("bench", "table"): {"file": f"{place}/bench.json"},
        ("study", "plan"): {**study, "--device-name": "a100"},
        ("study", "run"): study,
        ("study", "status"): study,
        ("study", "report"): study,
        ("compare",): {"runs": run, "--against": run},
        ("report",): {"roots": run, "--out": "out"},
        ("example",): {"name": "mynet", "--out": "out"},
        ("trust",): {"run": str(place / "own")},
    }  # fmt: skip
    return known.get(path, {})


def spelt(path: tuple[str, ...], given: dict[str, str]) -> list[str]:
    """A command as it is typed."""
    named = [f"{name}={value}" for name, value in given.items() if name.startswith("--")]
    return [*path, *named, "--", *(v for n, v in given.items() if not n.startswith("--"))]


def is_flag(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.is_flag


CHOICES = [
    (path, param.opts[-1])
    for path in leaves(main)
    for param in params_of(path)
    if not is_flag(param)
]


@pytest.mark.parametrize("path", dict.fromkeys(leaves(main)), ids=str)
def test_the_good_words_are_good(
    path: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or a strange word beside them would show nothing."""
    with guarded(place, place / "trained"):
        code = run_cli(spelt(path, good(path, place)))
    assert code == 0 or "the work would begin here" in capsys.readouterr().err


@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
@pytest.mark.parametrize(("path", "option"), thinned(CHOICES, 3), ids=str)
def test_strange_words(
    path: tuple[str, ...], option: str, part: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = good(path, place)
    for word in STRANGE[part::3]:
        args = spelt(path, {**base, option: word})
        shutil.rmtree("out", ignore_errors=True)
        with guarded(place, place / "trained"):
            try:
                code = run_cli(args)
            except Exception as error:
                raise AssertionError(f"{args} raised {error!r}") from error
        said = capsys.readouterr()
        assert code in (0, 1, 2), (word, code)
        assert "Traceback" not in said.err
        if code:
            last = said.err.strip().splitlines()[-1]
            assert last.startswith(("buttress: ", "Error: ")), (word, said.err)


def test_every_command_is_tried() -> None:
    assert {path[0] for path, _ in CHOICES} == set(COMMANDS)


@pytest.mark.parametrize("number", ["-1", "0", "1000000", "9" * 40])
@pytest.mark.parametrize("option", ["--workers", "--batch-size", "--limit", "--until-width"])
def test_numbers_beyond_reason(
    option: str, number: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A million workers are refused before the first is started."""
    args = ["evaluate", f"{place}/net.py:net", "--data", "digits", "--limit", "4", "--suite",
            "clean,clean", "--out", "out", option, number]  # fmt: skip
    with guarded(place):
        code = run_cli(args)
    said = capsys.readouterr()
    assert code == (0 if option == "--batch-size" and int(number) > 0 else 2)
    assert "would begin" not in said.err


HOSTILE_RUNS = {
    "run.json": "{}",
    "done.json": '{"epochs": 7}',
    "train.jsonl": "nonsense",
    "eval/quick/clean.parquet": "nonsense",
    "best.pt": "nonsense",
}


@pytest.mark.parametrize("command", ["evaluate", "analyse", "report", "finetune"])
@pytest.mark.parametrize("file", HOSTILE_RUNS)
def test_commands_on_damaged_runs(
    file: str, command: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    run = Run(tmp_path / "runs" / "r1")
    (run.path / file).write_text(HOSTILE_RUNS[file])
    args = {
        "evaluate": ["evaluate", str(run.path), "--suite", "clean,clean", "--limit", "4"],
        "analyse": ["analyse", "sparsity", str(run.path)],
        "report": ["report", str(run.path), "--out", "out"],
        "finetune": ["finetune", str(run.path), "--data", "digits", "--out", "out"],
    }[command]
    with guarded(tmp_path / "runs"):
        code = run_cli([*args, "--json"])
    said = capsys.readouterr()
    if command == "report":
        assert code == 0
        assert json.loads(said.out)
        return
    assert code in (1, 2)
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert said.err.startswith("buttress: ")


CASES = len(CHOICES) * len(STRANGE[::3]) + 16 + 4 * len(HOSTILE_RUNS)
