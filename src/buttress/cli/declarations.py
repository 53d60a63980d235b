"""The part of a source file that decides what it registers, found without running it.

An edit inside a function changes no name, tag or summary in a registry. So that an index of names
stays valid after it, files are compared by the statements that register something: module-level
statements, decorators, whatever mentions ``register``, and the functions that these call.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable

NO_DECLARATIONS = hashlib.sha256(b"").hexdigest()  # also of a file that does not exist
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def declarations_digest(name: str, content: bytes) -> str:
    """A hash of what decides the registered entries of a file; other edits leave it unchanged.

    YAML files, and Python files that cannot be parsed, are hashed whole.
    """
    if not name.endswith(".py"):
        return hashlib.sha256(content).hexdigest()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(content).hexdigest()
    dumps = _declarations(tree, with_imports=name.endswith("__init__.py"))
    return hashlib.sha256("\n".join(dumps).encode()).hexdigest()


def _declarations(tree: ast.Module, with_imports: bool) -> list[str]:
    """Dumps of the statements that register, in the order of the file."""
    definitions = {node.name: node for node in tree.body if isinstance(node, DEFINITIONS)}
    roots: list[ast.AST] = []
    for node in tree.body:
        if isinstance(node, DEFINITIONS):
            roots += [node] if _registers(node) else node.decorator_list
        elif not isinstance(node, ast.Import | ast.ImportFrom) or with_imports:
            roots.append(node)
    if not any(_registers(root) for root in roots) and not with_imports:
        # Such a file may only define names, tags or papers that others import from it.
        roots = [root for root in roots if _assigns_text(root)]
    called = _called_definitions(roots, definitions)
    used = _names(roots) | _decorated(definitions.values())
    dumps = [ast.dump(root) for root in roots if not _is_docstring(root)]
    dumps += [ast.dump(definitions[name]) for name in definitions if name in called]
    return dumps + [_summary(definitions[name]) for name in definitions if name in used]


def _registers(node: ast.AST) -> bool:
    """Whether ``x.register(...)`` is called, in a definition without its decorators."""
    parts: list[ast.AST] = [*node.body] if isinstance(node, DEFINITIONS) else [node]
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "register"
        for part in parts
        for n in ast.walk(part)
    )


def _assigns_text(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    return any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node.value)
    )


def _called_definitions(roots: Iterable[ast.AST], definitions: dict[str, Definition]) -> set[str]:
    """Names of the file's functions and classes that run when its statements do."""
    called: set[str] = set()
    queue = list(roots)
    while queue:
        node = queue.pop()
        names = {
            n.func.id
            for n in ast.walk(node)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        new = (names & definitions.keys()) - called
        called |= new
        queue += [definitions[name] for name in new]
    return called


def _names(roots: Iterable[ast.AST]) -> set[str]:
    return {n.id for root in roots for n in ast.walk(root) if isinstance(n, ast.Name)}


def _decorated(definitions: Iterable[Definition]) -> set[str]:
    return {node.name for node in definitions if node.decorator_list}


def _summary(node: Definition) -> str:
    """Name and first line of the docstring, the default summary of an entry."""
    return f"{node.name}: {(ast.get_docstring(node) or '').partition(chr(10))[0]}"


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
