"""The names that users may rely on, and how little it costs to ask for them."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import buttress

NAMES = [
    "accuracy_curve",
    "Comparison",
    "Dataset",
    "Diagnosis",
    "Evaluation",
    "NormBall",
    "Threat",
    "__version__",
    "analyse",
    "analyze",
    "attack",
    "attacks",
    "benchmark",
    "compare",
    "corrupt",
    "corrupt_dataset",
    "create_model",
    "diagnose",
    "evaluate",
    "evaluate_until",
    "export_run",
    "finetune",
    "from_pretrained",
    "list_analyses",
    "list_attacks",
    "list_augmentations",
    "list_checks",
    "list_corruptions",
    "list_datasets",
    "list_models",
    "list_objectives",
    "list_recipes",
    "list_searches",
    "list_studies",
    "list_suites",
    "list_threats",
    "load_dataset",
    "load_model",
    "minimum_norms",
    "train",
    "write_report",
]

TAGGED = [
    "list_analyses",
    "list_attacks",
    "list_checks",
    "list_corruptions",
    "list_datasets",
    "list_models",
    "list_objectives",
    "list_threats",
]

# The parameters that DESIGN promises: a call that names them keeps working.
PARAMETERS = {
    "attack": ("name", "model", "x", "y", "threat", "eps", "norm", "seed"),
    "benchmark": ("model", "dataset", "threat", "n_examples", "batch_size", "seed"),
    "compare": ("a", "b", "suite", "attack"),
    "corrupt": ("x", "name", "severity", "ids", "seed"),
    "corrupt_dataset": ("dataset", "name", "severity", "seed"),
    "create_model": ("name", "num_classes", "image_size"),
    "diagnose": ("model", "data", "threat", "eps", "norm", "batch_size", "seed"),
    "evaluate": ("model", "data", "suite", "threat", "eps", "norm", "limit", "batch_size", "seed"),
    "export_run": ("run", "to", "checkpoint", "name"),
    "finetune": ("source", "dataset", "recipe", "out"),
    "from_pretrained": ("source", "revision", "device"),
    "load_dataset": ("name", "split", "limit"),
    "train": ("model", "dataset", "recipe", "out"),
}

HEAVY = ("torch", "timm", "torchvision", "sklearn", "scipy", "matplotlib", "pyarrow")


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_public_names_are_pinned() -> None:
    assert sorted(buttress.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(buttress))


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse(Path(buttress.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = [name for line in block.body if isinstance(line, ast.ImportFrom) for name in line.names]
    lines = [line for line in block.body if isinstance(line, ast.Assign)]
    aliases = [ast.unparse(target) for line in lines for target in line.targets]
    assert {"__version__", *(name.asname for name in names), *aliases} == set(NAMES)
    assert [name.name for name in names if name.name != name.asname] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves_and_says_what_it_is(name: str) -> None:
    value = getattr(buttress, name)
    if name == "__version__":
        assert isinstance(value, str)
    elif name == "attacks":
        assert inspect.ismodule(value)
    else:
        assert callable(value)


def test_the_british_spelling_is_the_same_function() -> None:
    assert buttress.analyse is buttress.analyze


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("list_")])
def test_every_list_has_names(name: str) -> None:
    found = getattr(buttress, name)()
    assert found
    assert all(isinstance(n, str) for n in found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", TAGGED)
def test_things_with_tags_are_listed_by_tag(name: str) -> None:
    list_names = getattr(buttress, name)
    assert list_names(tag=None) == list_names()
    assert list_names(tag="no such tag") == []


@pytest.mark.parametrize("name", PARAMETERS)
def test_promised_parameters_are_there(name: str) -> None:
    known = inspect.signature(getattr(buttress, name)).parameters
    assert [p for p in PARAMETERS[name] if p not in known] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = buttress.no_such_name
    with pytest.raises(AttributeError, match="did you mean 'evaluate'"):
        _ = buttress.evaluat


@pytest.mark.parametrize(
    "module", ["buttress", "buttress.results.run", "buttress.results", "buttress.report"]
)
def test_importing_loads_no_torch(module: str) -> None:
    done = python(f"import {module}, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = python(f"import buttress, sys; print([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_answers_without_loading_anything_heavy(args: list[str]) -> None:
    code = (
        "import runpy, sys\n"
        "try:\n"
        "    runpy.run_module('buttress.cli.main', run_name='__main__')\n"
        "finally:\n"
        f"    print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)\n"
    )
    done = python(code, *args)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.strip() == "[]"


def test_help_names_the_commands() -> None:
    command = [sys.executable, "-m", "buttress.cli.main", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    commands = ("quickstart", "list", "data", "train", "finetune", "evaluate", "compare",
                "analyze", "export", "report")  # fmt: skip
    assert [c for c in commands if c not in done.stdout] == []


def test_the_entry_point_is_there() -> None:
    from buttress.cli import commands, main

    assert callable(main.run)
    assert commands.main.name in {"main", "buttress"}
