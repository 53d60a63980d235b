"""The import direction, the size and the form of the files of the package.

The checker reads source files only, so that it also sees imports inside functions, and so that it
can be tried on made-up trees, which the second half of this file does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "buttress"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE

# A part may import itself and the parts in the rows above its own.
ORDER: tuple[frozenset[str], ...] = (
    frozenset({"errors", "registry"}),
    frozenset({"system"}),
    frozenset({"config", "statistics", "threats"}),
    frozenset({"results"}),
    frozenset({"data", "models"}),
    frozenset({"attacks"}),
    frozenset({"engine"}),
    frozenset({"training"}),
    frozenset({"evaluation"}),
    frozenset({"analysis"}),
    frozenset({"studies"}),
    frozenset({"report"}),
    frozenset({"export"}),
    frozenset({"bench"}),
    frozenset({""}),  # the public names of the package itself: for users and the command line
    frozenset({"cli"}),
    frozenset({"__main__"}),  # the command line as `python -m buttress`
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
FREE_OF_TORCH = ("results", "report", "cli")  # when they are imported
NEVER_TORCH = ("results", "report")  # nor later
TORCH = frozenset({"torch", "torchvision", "timm", "lightning_fabric"})
# Names that users find in a package and that a later part makes: loaded when they are used.
PUBLIC_NAMES = {("buttress.attacks", "buttress.engine.configured")}
REGISTERED = (
    "data/datasets",
    "data/corruptions",
    "models/families",
    "attacks",
    "training/objectives",
    "evaluation/doctor",
    "analysis",
)
LONGEST = 500


class Import(NamedTuple):
    line: int
    name: str  # the module, with the imported name added where that is a module too
    is_late: bool  # inside a function
    is_typing: bool  # under `if TYPE_CHECKING`


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def part(self) -> str:
        """The first name below the package: a folder, or a module of its own."""
        return part_of(self.name)


class Tree:
    """The modules below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        self._imports: dict[str, list[Import]] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join([PACKAGE, *parts]).removesuffix(".__init__")
            self.modules[name] = Module(name, path, path.read_text(encoding="utf-8"))

    def imports(self, module: Module) -> list[Import]:
        if module.name not in self._imports:
            found = self._walk(module, module.tree, is_late=False, is_typing=False)
            self._imports[module.name] = list(found)
        return self._imports[module.name]

    def _walk(
        self, module: Module, node: ast.AST, *, is_late: bool, is_typing: bool
    ) -> Iterator[Import]:
        for name in self._names(module, node):
            yield Import(getattr(node, "lineno", 0), name, is_late, is_typing)
        is_late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from self._walk(module, child, is_late=is_late, is_typing=True)
            for child in node.orelse:
                yield from self._walk(module, child, is_late=is_late, is_typing=is_typing)
            return
        for inner in ast.iter_child_nodes(node):
            yield from self._walk(module, inner, is_late=is_late, is_typing=is_typing)

    def _names(self, module: Module, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - (1 if module.is_package else 0)
                above = module.name.split(".")[: len(module.name.split(".")) - up]
                base = ".".join([*above, base]).rstrip(".")
            return [self._target(base, alias.name) for alias in node.names]
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                return [given.value]
        return []

    def _target(self, base: str, name: str) -> str:
        whole = f"{base}.{name}"
        # The version is no public function: every part may ask for it.
        is_version = whole == f"{PACKAGE}.__version__"
        return f"{PACKAGE}.errors" if is_version else whole if whole in self.modules else base

    def loaded_by(self, name: str) -> set[str]:
        """Every module, ours and others, that is loaded when a module is imported."""
        seen: set[str] = set()
        queue = [name]
        while queue:
            here = queue.pop()
            if here in seen:
                continue
            seen.add(here)
            if here.startswith(f"{PACKAGE}."):
                queue.append(here.rpartition(".")[0])
            if here in self.modules:
                found = self.imports(self.modules[here])
                queue += [i.name for i in found if not i.is_late and not i.is_typing]
        return seen


def part_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def is_ours(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


def direction(tree: Tree) -> Iterator[str]:
    """Imports of a part that comes later, or of a sibling."""
    for module in tree.modules.values():
        if module.part == "":  # the package itself names everything, for type checkers
            continue
        if module.part not in RANK:
            yield f"{module.name}: {module.part!r} has no place in the order"
            continue
        for found in tree.imports(module):
            other = part_of(found.name)
            is_public = (module.name, found.name) in PUBLIC_NAMES
            if is_public and (found.is_late or found.is_typing):
                continue
            if not is_ours(found.name) or other == module.part:
                continue
            rank = RANK.get(other)
            same = rank == RANK[module.part] and rank != 0
            if rank is None or rank > RANK[module.part] or same:
                yield f"{module.name}:{found.line} imports {found.name}"


def torch_free(tree: Tree) -> Iterator[str]:
    """Torch, direct or through other modules, where there must be none."""
    for module in tree.modules.values():
        if module.part not in FREE_OF_TORCH:
            continue
        for found in tree.imports(module):
            if found.is_typing or (found.is_late and module.part not in NEVER_TORCH):
                continue
            heavy = {n.split(".")[0] for n in tree.loaded_by(found.name)} & TORCH
            if heavy:
                yield f"{module.name}:{found.line} loads {min(heavy)} through {found.name}"


def form(tree: Tree) -> Iterator[str]:
    """Files that are too long, say nothing, or are named for nothing."""
    for module in tree.modules.values():
        lines = module.text.count("\n")
        if lines > LONGEST:
            yield f"{module.name}: {lines} lines, more than {LONGEST}"
        if not ast.get_docstring(module.tree):
            yield f"{module.name}: no docstring"
        if module.path.stem == "utils":
            yield f"{module.name}: name the file for what it holds"


def registration(tree: Tree) -> Iterator[str]:
    """Files in a folder of registered things that the folder's ``__init__`` never loads."""
    for folder in REGISTERED:
        name = f"{PACKAGE}.{folder.replace('/', '.')}"
        loaded = tree.loaded_by(name)
        inside = [m for m in tree.modules if m.startswith(f"{name}.")]
        yield from (f"{m}: not imported by {name}" for m in inside if m not in loaded)


CHECKS = {"direction": direction, "torch": torch_free, "form": form, "registration": registration}


@pytest.mark.parametrize("check", CHECKS)
def test_the_package_keeps_the_rule(check: str) -> None:
    assert list(CHECKS[check](Tree(SOURCE))) == []


def test_the_package_is_what_is_checked() -> None:
    parts = {m.part for m in Tree(SOURCE).modules.values()}
    assert parts == set(RANK)


def test_the_picture_has_every_folder() -> None:
    text = (SOURCE.parents[1] / "docs" / "architecture.svg").read_text(encoding="utf-8")
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"<text[^>]*>([^<]*)<", text))))
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= named


# The rest tries the checker itself: a sound tree has no faults, and each slip is found.

SOUND = {
    "__init__.py": "'''Root.'''\n__version__ = '1'\n",
    "errors.py": "'''Errors.'''\n",
    "system/__init__.py": "'''System.'''\n",
    "system/rng.py": "'''Noise.'''\nimport torch\n",
    "threats/__init__.py": "'''Threat models.'''\nfrom buttress.errors import X\n",
    "results/__init__.py": "'''Results.'''\nfrom buttress.threats import Y\n",
    "data/__init__.py": "'''Data.'''\nfrom buttress.data import datasets\n",
    "data/datasets/__init__.py": (
        "'''Datasets.'''\nfrom buttress.data.datasets import digits as digits\n"
    ),
    "data/datasets/digits.py": "'''Digits.'''\nimport torch\nfrom ..core import DATASETS\n",
    "data/core.py": "'''The registry.'''\nfrom buttress import __version__\n",
    "models/__init__.py": "'''Models.'''\nimport torch\n",
    "attacks/__init__.py": "'''Attacks.'''\nfrom buttress.models import eval_mode\n",
    "engine/__init__.py": "'''Engine.'''\n",
    "training/__init__.py": "'''Training.'''\n",
    "training/objectives/__init__.py": "'''Objectives.'''\n",
    "evaluation/__init__.py": "'''Evaluation.'''\n",
    "analysis/__init__.py": "'''Analysis.'''\n",
    "studies/__init__.py": "'''Studies.'''\n",
    "report/__init__.py": "'''Report.'''\nimport buttress.results\n",
    "cli/__init__.py": "'''Commands.'''\ndef f():\n    import torch, buttress.report\n",
}

SLIPS = [
    # check, file, text
    ("direction", "data/datasets/digits.py", "from buttress.training import train"),
    ("direction", "data/datasets/digits.py", "import buttress.training"),
    ("direction", "data/datasets/digits.py", "from buttress import training"),
    ("direction", "data/datasets/digits.py", "from ...training import train"),
    ("direction", "data/__init__.py", "from ..training import train"),
    ("direction", "data/datasets/digits.py", "def f():\n    from buttress.training import train"),
    (
        "direction",
        "data/datasets/digits.py",
        "class C:\n    def f(self):\n        import buttress.cli",
    ),
    (
        "direction",
        "data/datasets/digits.py",
        "if TYPE_CHECKING:\n    from buttress.studies import Study",
    ),
    ("direction", "data/datasets/digits.py", "importlib.import_module('buttress.evaluation')"),
    ("direction", "data/datasets/digits.py", "from buttress import evaluate"),
    ("direction", "data/datasets/digits.py", "import buttress"),
    ("direction", "models/__init__.py", "from buttress.attacks import attack"),
    ("direction", "errors.py", "from buttress.results import Run"),
    ("direction", "attacks/__init__.py", "from buttress.engine.configured import attack"),
    ("direction", "report/__init__.py", "from buttress.cli import main"),
    ("direction", "extra/__init__.py", ""),
    ("torch", "results/__init__.py", "import torch"),
    ("torch", "results/__init__.py", "from torch import nn"),
    ("torch", "results/__init__.py", "from buttress.system.rng import SampleRNG"),
    ("torch", "report/__init__.py", "def f():\n    import torch.nn"),
    ("torch", "report/__init__.py", "def f():\n    from buttress.models import create_model"),
    ("torch", "cli/__init__.py", "from buttress.data import load_dataset"),
    ("form", "data/utils.py", ""),
    ("form", "data/datasets/digits.py", "\n" * LONGEST),
    ("registration", "data/datasets/forgotten.py", ""),
    ("registration", "training/objectives/forgotten.py", ""),
]


def grow(root: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Tree(root)


def faults(tree: Tree) -> dict[str, list[str]]:
    return {name: found for name, check in CHECKS.items() if (found := list(check(tree)))}


def test_a_sound_tree_has_no_faults(tmp_path: Path) -> None:
    assert faults(grow(tmp_path, SOUND)) == {}


@pytest.mark.parametrize(("check", "name", "text"), SLIPS)
def test_a_slip_is_found(tmp_path: Path, check: str, name: str, text: str) -> None:
    text = SOUND.get(name, "'''New.'''\n") + text + "\n"
    found = faults(grow(tmp_path, {**SOUND, name: text}))
    assert name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") in found[check][0]


def test_a_file_without_docstring_is_found(tmp_path: Path) -> None:
    found = faults(grow(tmp_path, {**SOUND, "errors.py": "# Errors.\n"}))
    assert found == {"form": ["buttress.errors: no docstring"]}


def test_torch_for_types_or_inside_a_function_of_a_command_is_allowed(tmp_path: Path) -> None:
    late = "def f():\n    import torch\nif TYPE_CHECKING:\n    from torch import Tensor\n"
    text = SOUND["cli/__init__.py"] + late
    assert faults(grow(tmp_path, {**SOUND, "cli/__init__.py": text})) == {}
