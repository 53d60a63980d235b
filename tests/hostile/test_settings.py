"""Recipes, suites and studies in YAML that are wrong, hostile or endless."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buttress.config import apply_overrides
from buttress.data.datasets.digits import DIGITS_BUDGETS
from buttress.evaluation.suite import SuiteTarget, load_suite, resolve_suite
from buttress.results.run import Run
from buttress.studies.grid import expand_study
from buttress.studies.spec import load_study
from buttress.training import load_recipe
from hostile_cases import guarded, refusal

RECIPE = "epochs: 2\nobjective: pgd_at\nthreat: Linf:0.1\noptimizer: {lr: 0.1}\n"
SUITE = "entries: [clean, pgd-linf]\n"
STUDY = """question: Which?
grid:
  base: {model: vit_tiny, dataset: digits, recipe: quickstart-at}
  suites: [quickstart]
"""


def run_study(path: Path) -> object:
    return expand_study(load_study(path), "smoke")


def run_suite(path: Path) -> object:
    return resolve_suite(load_suite(path), SuiteTarget(DIGITS_BUDGETS, 32))


KINDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "recipe": (RECIPE, load_recipe),
    "suite": (SUITE, run_suite),
    "study": (STUDY, run_study),
}
LAUGHS = "\n".join(
    ["a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    + [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
)
# What is wrong in a file of any kind; with %s its good content.
ANY: dict[str, bytes] = {
    name: text if isinstance(text, bytes) else str(text).encode()
    for name, text in {
        "nothing": "",
        "a number": "7",
        "a text": "epochs",
        "a list of numbers": "[1, 2]",
        "null": "null",
        "not closed": "entries: [1, {a: ",
        "tabs": "a:\n\t- b",
        "two documents": "a: 1\n---\nb: 2",
        "not UTF-8": b"name: \xff\xfe\n",
        "control characters": b"name: \x01\x02\n",
        "UTF-16": "name: x".encode("utf-16"),
        "unknown key": "%snonsense: 1\n",
        "a key twice": "%sname: a\nname: b\n",
        "a key twice, quoted": "%sdescription: a\n'description': b\n",
        "a number as key": "%s7: 1\n",
        "null as key": "%s~: 1\n",
        "a list as key": "%s? [a, b]\n: 1\n",
        "python object": "%sname: !!python/object/apply:os.mkdir [attacked]\n",
        "python name": "%sname: !!python/name:os.system\n",
        "python tuple": "%sname: !!python/tuple [1]\n",
        "own tag": "%sname: !evil x\n",
        "binary": "%sname: !!binary aGVsbG8=\n",
        "a set": "%sname: !!set {a, b}\n",
        "a date": "%sname: 2024-01-01\n",
        "a date that is none": "%sname: 2024-99-99\n",
        "a forced number": "%sname: !!int abc\n",
        "a forced float": "%sname: !!float abc\n",
        "an unknown alias": "%sname: *nobody\n",
        "laughs": "%s" + LAUGHS + "\n",
        "itself": "%sdescription: &a [*a]\n",
        "itself in a mapping": "%sdescription: &a {b: *a}\n",
        "deep lists": "%sdescription: " + "[" * 5000 + "]" * 5000 + "\n",
        "deep mappings": "%sdescription: " + "{a: " * 2000 + "}" * 2000 + "\n",
        "rather deep": "%sdescription: " + "[" * 60 + "]" * 60 + "\n",
        "a huge number": "%sseed: " + "9" * 5000 + "\n",
        "a large number": "%sseed: 99999999999999999999999\n",
        "huge": "# " + "x" * (2 << 20) + "\n%s",
        "a name that is a list": "%sname: [a]\n",
        "a name that is a mapping": "%sname: {a: b}\n",
        "merge of a text": "%s<<: text\n",
    }.items()
}
RECIPES: dict[str, str] = {
    "epochs: 0": "epochs",
    "epochs: -1": "epochs",
    "epochs: 1.5": "epochs",
    "epochs: many": "epochs",
    "epochs: null": "epochs",
    "epochs: .nan": "epochs",
    "epochs: .inf": "epochs",
    "epochs: [2]": "epochs",
    "batch_size: 0": "batch_size",
    "batch_size: -5": "batch_size",
    "threat: Linf:-0.1": "eps",
    "threat: Linf:nan": "eps",
    "threat: Linf:inf": "eps",
    "threat: Linf:1e999": "eps",
    "threat: Linf:8": "8/255",
    "threat: Linf:1/0": "eps",
    "threat: L7:1": "threat model",
    "threat: 'Linf'": "KIND:BUDGET",
    "threat: 5": "threat",
    "threat: {norm: Linf}": "threat",
    "objective: nothing_known": "nothing_known",
    "objective: 5": "objective",
    "objective: {name: pgd_at, args: {step: 3}}": "step",
    "objective: {name: pgd_at, args: {steps: -3}}": "steps",
    "objective: {name: pgd_at, args: {steps: 0}}": "steps",
    "objective: {name: pgd_at, args: {steps: many}}": "steps",
    "objective: {name: pgd_at, args: {steps: null}}": "steps",
    "objective: {name: pgd_at, args: {steps: .nan}}": "steps",
    "objective: {name: pgd_at, args: {steps: [3]}}": "steps",
    "objective: {name: pgd_at, args: 7}": "args",
    "objective: {name: trades, args: {beta: .inf}}": "beta",
    "objective: {name: trades, args: {beta: x}}": "beta",
    "optimizer: {lr: 0}": "lr",
    "optimizer: {lr: -1}": "lr",
    "optimizer: {lr: .nan}": "lr",
    "optimizer: {lr: .inf}": "lr",
    "optimizer: {lr: 'inf'}": "lr",
    "optimizer: {lr: 'nan'}": "lr",
    "optimizer: {lr: 1e999}": "lr",
    "optimizer: {}": "lr",
    "optimizer: sgd": "optimizer",
    "optimizer: {lr: 0.1, momentum: 1}": "momentum",
    "optimizer: {lr: 0.1, weight_decay: .nan}": "weight_decay",
    "optimizer: {lr: 0.1, betas: [.nan, .nan]}": "betas",
    "optimizer: {lr: 0.1, name: ../../evil}": "name",
    "schedule: {name: points, points: []}": "points",
    "schedule: {warmup_epochs: -1}": "warmup_epochs",
    "schedule: {warmup_epochs: .inf}": "warmup_epochs",
    "augmentation: nonsense": "nonsense",
    "augmentation: {crop_padding: -1}": "crop_padding",
    "augmentation: {mixup: .nan}": "mixup",
    "augmentation: {mixup: .inf}": "mixup",
    "augmentation: {resized_crop: {scale: [2, 1]}}": "scale",
    "augmentation: {resized_crop: {scale: [0.1, .inf]}}": "scale",
    "augmentation: {random_erasing: 2}": "random_erasing",
    "label_smoothing: 1": "label_smoothing",
    "l1_weight: .nan": "l1_weight",
    "clip_grad_norm: 0": "clip_grad_norm",
    "precision: 8-bit": "precision",
    "validation: {attack: {name: pgd, args: {steps: x}}}": "steps",
    "validation: {attack: nobody}": "nobody",
    "validation: {every: 0}": "every",
    "extra_data: {dataset: digits, batch_fraction: 1}": "batch_fraction",
    "select_on: train": "select_on",
}
SUITES: dict[str, str] = {
    "entries: []": "entries",
    "entries: clean": "entries",
    "entries: {clean: 1}": "entries",
    "entries: [7]": "entries",
    "entries: [null]": "entries",
    "entries: [[clean]]": "entries",
    "entries: [nobody-linf]": "nobody",
    "entries: [pgd-l7]": "pgd-l7",
    "entries: ['pgd:Linf:-1']": "eps",
    "entries: ['pgd:Linf:nan']": "eps",
    "entries: ['pgd:Linf:inf']": "eps",
    "entries: ['pgd:Linf:8']": "8/255",
    "entries: ['pgd:Linf:']": "eps",
    "entries: ['pgd:Linf:1e-999999x']": "eps",
    "entries: [pgd-linf, pgd-linf]": "two entries",
    "entries: [{attack: pgd, threat: Linf, args: {steps: 0}}]": "steps",
    "entries: [{attack: pgd, threat: Linf, args: {steps: -1}}]": "steps",
    "entries: [{attack: pgd, threat: Linf, args: {steps: '3'}}]": "steps",
    "entries: [{attack: pgd, threat: Linf, args: {steps: 3.5}}]": "steps",
    "entries: [{attack: pgd, threat: Linf, args: {steps: true}}]": "steps",
    "entries: [{attack: pgd, threat: Linf, args: {rel_step: .nan}}]": "rel_step",
    "entries: [{attack: pgd, threat: Linf, args: {rel_step: .inf}}]": "rel_step",
    "entries: [{attack: pgd, threat: Linf, args: {loss: 5}}]": "loss",
    "entries: [{attack: pgd, threat: Linf, args: {target: 1.5}}]": "target",
    "entries: [{attack: pgd, threat: Linf, args: {eps: 1}}]": "eps",
    "entries: [{attack: pgd, threat: Linf, args: [steps]}]": "args",
    "entries: [{attack: pgd, threat: 5}]": "threat",
    "entries: [{attack: 5, threat: Linf}]": "attack",
    "entries: [{threat: Linf}]": "attack",
    "entries: [{attack: transfer, threat: Linf}]": "sources",
    "entries: [{attack: square, threat: Linf, args: {p_init: .nan}}]": "p_init",
    "entries: [{name: '..', attack: pgd, threat: Linf}]": "name",
    "entries: [{name: \"a\\0b\", attack: pgd, threat: Linf}]": "name",
    "entries: [{name: \"a\\nb\", attack: pgd, threat: Linf}]": "name",
    "entries: [{name: a/b, attack: pgd, threat: Linf}, {name: a_b, attack: cw, threat: L2}]": "two",
    f"entries: [{{name: {'x' * 300}, attack: pgd, threat: Linf}}]": "name",
    "mode: quick\nentries: [clean]": "mode",
}  # fmt: skip


def run_with(**changes: str) -> str:
    """The line that describes the runs of a study, with some words changed."""
    words = {"model": "vit_tiny", "dataset": "digits", "recipe": "quickstart-at", **changes}
    return f"  base: {{{', '.join(f'{key}: {value}' for key, value in words.items())}}}"


STUDIES: dict[str, str] = {
    run_with(model="nobody"): "nobody",
    run_with(model="[vit_tiny]"): "model",
    run_with(model="../../etc/passwd"): "passwd",
    run_with(model="'nowhere.py:net'"): "nowhere.py",
    run_with(model="'timm:nobody'"): "nobody",
    run_with(recipe="nobody"): "nobody",
    run_with(recipe="../../nowhere.yaml"): "nowhere.yaml",
    run_with(recipe="~"): "recipe",
    run_with(dataset="nobody"): "nobody",
    run_with(dataset="'folder:/nowhere/at/all'"): "nowhere",
    run_with(dataset="5"): "dataset",
    run_with(train_limit="0"): "train_limit",
    run_with(train_limit="-1"): "train_limit",
    run_with(model_args="{nonsense: 1}"): "nonsense",
    run_with(overrides="[nonsense]"): "KEY=VALUE",
    run_with(overrides="['nonsense=1']"): "nonsense",
    run_with(overrides="['epochs=[']"): "epochs",
    run_with(overrides="['epochs=!!python/name:os.system']"): "epochs",
    run_with(overrides="['epochs.x=1']"): "epochs",
    run_with(overrides="['threat=Linf:nan']"): "eps",
    run_with(init_from="{a: b}"): "not in the study",
    "  base: 5": "base",
    "  axes: 5": "axes",
    "  axes: {a: {b: {model: nobody}}}": "nobody",
    "  axes: {a: {b: {init_from: {a: b}}}}": "cycle",
    "  axes: {a: {b: {init_from: {a: c}}, c: {init_from: {a: b}}}}": "cycle",
    "  labels: {a: [b]}": "labels",
    "  columns: {c: {where: {a: b}}}": "column",
    "  seeds: []": "seeds",
    "  seeds: [x]": "seeds",
    "  suites: [nobody]": "nobody",
    "  suites: [../nowhere.yaml]": "nowhere.yaml",
    "  analyses: [nobody]": "nobody",
    "  test_limit: .nan": "test_limit",
    "  nonsense: 1": "nonsense",
    "grid: 5": "grid",
    "claims: [{id: a, statement: b, predicate: {name: nobody}}]": "nobody",
}


def with_line(content: str, line: str) -> str:
    """The content with one key replaced."""
    key = line.partition(":")[0]
    kept = [old for old in content.splitlines() if old.partition(":")[0] != key]
    if key == "grid":
        kept = [old for old in kept if not old.startswith(" ")]
    return "\n".join([*kept, line]) + "\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANY)
def test_any_file(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, load = KINDS[kind]
    path = tmp_path / "own.yaml"
    path.write_bytes(ANY[name].replace(b"%s", content.encode()))
    with guarded(tmp_path):
        refusal(lambda: load(path), "own.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_good_files(kind: str, tmp_path: Path) -> None:
    content, load = KINDS[kind]
    (tmp_path / "own.yaml").write_text(content)
    assert load(tmp_path / "own.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_things_that_are_no_files(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "ring.yaml").symlink_to(tmp_path / "ring.yaml")
    with guarded(tmp_path):
        for name in ("pipe.yaml", "folder.yaml", "ring.yaml", "absent.yaml", "a\0b.yaml"):
            refusal(lambda name=name: KINDS[kind][1](tmp_path / name))  # type: ignore[misc]


@pytest.mark.parametrize("line", RECIPES)
def test_recipes(line: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(with_line(RECIPE, line))
    with guarded(tmp_path):
        refusal(lambda: load_recipe(tmp_path / "own.yaml"), RECIPES[line])


@pytest.mark.parametrize("line", SUITES)
def test_suites(line: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(line + "\n")
    with guarded(tmp_path):
        refusal(lambda: run_suite(tmp_path / "own.yaml"), SUITES[line])


@pytest.mark.parametrize("line", STUDIES)
def test_studies(line: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(with_line(STUDY, line))
    with guarded(tmp_path):
        refusal(lambda: run_study(tmp_path / "own.yaml"), STUDIES[line])


LEGAL: dict[str, tuple[str, Callable[[Path], object]]] = {
    "aliases": ("description: &a x\nsource: *a\n" + RECIPE, load_recipe),
    "a merge": ("optimizer: {<<: {lr: 0.1}, momentum: 0.5}\nepochs: 2\n", load_recipe),
    "letters of the world": ("description: été 漢字 🦆\n" + RECIPE, load_recipe),
    "a mark of the byte order": ("\ufeff" + RECIPE, load_recipe),
    "no attack": ("objective: standard\nepochs: 1\noptimizer: {lr: 0.1}\n", load_recipe),
    "a slash in a name": ("entries: ['pgd:Linf:8/255']\n", run_suite),
    "eps of zero": ("entries: ['pgd:Linf:0']\n", run_suite),
    "a large eps": ("entries: ['pgd:L2:1000000']\n", run_suite),
    "many steps": ("entries: [{attack: pgd, threat: L2, args: {steps: 1000000000}}]", run_suite),
    "a bare list": ("[clean, pgd-linf]", run_suite),
}


@pytest.mark.parametrize("name", LEGAL)
def test_odd_files_that_are_good(name: str, tmp_path: Path) -> None:
    content, load = LEGAL[name]
    (tmp_path / "own.yaml").write_text(content, encoding="utf-8")
    assert load(tmp_path / "own.yaml")


CHANGES = (
    "", "=", "=1", "epochs", "epochs=", "epochs=[", "epochs={", "epochs=2: 3: 4", "epochs=*a",
    "epochs=!!python/name:os.system", "epochs=" + "[" * 3000, "epochs=" + "9" * 5000, "epochs=\x00",
    "epochs.a.b=1", ".=1", "...=1", "optimizer..lr=1", "optimizer.lr.x=1", "optimizer.lr=nan",
    "optimizer.lr=.nan", "name=2024-01-01", "objective.args.steps={}", "\ud800=1", "épochs=1",
    "__class__=1", "epochs=" + "1" * (2 << 20),
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: repr(c)[:30])
def test_changes(change: str, tmp_path: Path) -> None:
    with guarded(tmp_path):
        refusal(lambda: load_recipe("quickstart-at", (change,)))


@pytest.mark.parametrize(
    "suite", ["/tmp/x/evil.yaml", "../../evil.yaml", "a/../../evil.yml", "evil"]
)
def test_records_of_a_suite_stay_in_the_run(suite: str, tmp_path: Path) -> None:
    assert Run(tmp_path).suite_folder(suite) == tmp_path / "eval" / "evil"


@pytest.mark.parametrize("suite", ["", ".", "..", "/", "/evil/", "...yaml", "../..", "a\0b"])
def test_a_suite_of_any_name_has_a_folder_in_the_run(suite: str, tmp_path: Path) -> None:
    folder = Run(tmp_path).suite_folder(suite)
    assert folder.parent == tmp_path / "eval"
    assert folder.name not in ("", ".", "..")
    assert "\0" not in folder.name


def test_values_that_json_has_not_are_refused() -> None:
    raw: dict[str, Any] = {"a": {1, 2}}
    with pytest.raises(TypeError):  # a mistake of ours, not of a user: YAML gives no such value
        apply_overrides(raw, ())


CASES = (
    3 * len(ANY) + 3 + 15 + len(RECIPES) + len(SUITES) + len(STUDIES) + len(LEGAL) + len(CHANGES)
    + 12
)  # fmt: skip
