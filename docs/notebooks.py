"""Executes the notebooks of the tutorials and renders them, with their outputs, as pages.

A notebook is kept without outputs and executed, in an empty folder, when its page is built: what a
page shows is what the package does now. Results are cached until the notebook or the package
changes. A cell that raises fails the build.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from myst_parser.parsers.sphinx_ import MystParser

import buttress

if TYPE_CHECKING:
    from docutils import nodes  # type: ignore[import-untyped]
    from IPython.core.interactiveshell import InteractiveShell
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
GENERATED = HERE / "_generated" / "notebooks"
PACKAGE = Path(buttress.__file__).parent
DOWNLOAD = "{download}`Download this page as a notebook <%s>`; it runs in seconds on a CPU."
WRITE_FILE = "%%writefile "


class NotebookError(Exception):
    """A cell of a notebook raised."""


class CellOutput(NamedTuple):
    """What a code cell printed and displayed, by MIME type; pictures are base64."""

    printed: str
    displayed: list[dict[str, str]]


class NotebookParser(MystParser):
    """Reads ``*.ipynb`` as MyST Markdown: text cells, code cells and their outputs."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        path = Path(document["source"])
        document.settings.env.note_reread()  # the package may change while the notebook does not
        cells = json.loads(inputstring)["cells"]
        super().parse(render_notebook(path.name, cells, cached_outputs(path, cells)), document)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": False}


def cell_source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])  # a string, or a list of lines


def cached_outputs(path: Path, cells: list[dict[str, Any]]) -> list[CellOutput]:
    """Outputs of the code cells, executed if the notebook or the package has changed."""
    codes = [cell_source(cell) for cell in cells if cell["cell_type"] == "code"]
    files = sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".yaml", ".j2"))
    digest = hashlib.sha256(json.dumps(codes).encode())
    for file in files:
        digest.update(file.read_bytes())
    cache = GENERATED / f"{path.stem}.json"
    if cache.is_file():
        known = json.loads(cache.read_text(encoding="utf-8"))
        if known["digest"] == digest.hexdigest():
            return [CellOutput(*output) for output in known["outputs"]]
    outputs = execute_cells(codes, path.name)
    GENERATED.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({"digest": digest.hexdigest(), "outputs": outputs}))
    return outputs


def execute_cells(codes: list[str], name: str) -> list[CellOutput]:
    """Execute code cells in an empty folder as Jupyter would; figures are shown after a cell."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    with tempfile.TemporaryDirectory() as folder, working_in(folder):
        settings = Config({"HistoryManager": {"enabled": False}})
        shell = InteractiveShell(config=settings, ipython_dir=folder, colors="nocolor")
        return [
            execute_cell(shell, code, f"{name}, code cell {number}")
            for number, code in enumerate(codes, 1)
        ]


@contextlib.contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Work in a folder whose modules can be imported, and forget them afterwards."""
    before, modules = Path.cwd(), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        os.chdir(before)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                del sys.modules[name]


def execute_cell(shell: InteractiveShell, code: str, where: str) -> CellOutput:
    from IPython.core.display_trap import DisplayTrap
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher

    publisher = CapturingDisplayPublisher()
    shell.display_pub = publisher
    shell.display_trap = DisplayTrap(hook=CapturingDisplayHook(shell, publisher.outputs))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        result = shell.run_cell(code, store_history=False)
    if not result.success:
        raise NotebookError(f"{where} raised:\n{printed.getvalue()}")
    displayed = [
        {kind: as_text(data) for kind, data in o["data"].items()} for o in publisher.outputs
    ]
    return CellOutput(printed.getvalue(), displayed + open_figures())


def as_text(data: str | bytes) -> str:
    return data if isinstance(data, str) else base64.b64encode(data).decode()


def open_figures() -> list[dict[str, str]]:
    """The figures that the cell left open, closed now, as PNG."""
    import matplotlib.pyplot as plt

    pictures = []
    for number in plt.get_fignums():
        with io.BytesIO() as file:
            plt.figure(number).savefig(file, dpi=110, bbox_inches="tight")
            pictures.append({"image/png": as_text(file.getvalue())})
    plt.close("all")
    return pictures


def render_notebook(name: str, cells: list[dict[str, Any]], outputs: list[CellOutput]) -> str:
    """The notebook as MyST Markdown; its pictures are written below ``_generated``."""
    pieces, left = [], iter(outputs)
    for number, cell in enumerate(cells):
        source = cell_source(cell)
        if cell["cell_type"] != "code":
            pieces.append(source)
            continue
        output = next(left)
        if source.startswith(WRITE_FILE):
            pieces.append(render_file(source))
            continue
        pieces.append(fenced("{code-block} python", source))
        if output.printed.strip():
            pieces.append(fenced("{code-block} text\n:class: output", output.printed))
        pieces += [
            render_data(data, f"{Path(name).stem}-{number}-{i}.png")
            for i, data in enumerate(output.displayed)
        ]
    title, _, rest = pieces[0].partition("\n")
    return "\n\n".join([title, DOWNLOAD % name, rest, *pieces[1:]])


def render_file(source: str) -> str:
    """A cell that writes a file, as that file below its name."""
    head, _, text = source.partition("\n")
    name = head.removeprefix(WRITE_FILE)
    language = "yaml" if name.endswith(".yaml") else "python"
    return fenced(f"{{code-block}} {language}\n:caption: {name}", text)


def render_data(data: dict[str, str], name: str) -> str:
    """The richest form that a page can show."""
    if "image/png" in data:
        GENERATED.mkdir(parents=True, exist_ok=True)
        (GENERATED / name).write_bytes(base64.b64decode(data["image/png"]))
        return f"![Output of the cell above](/_generated/notebooks/{name})"
    if "text/html" in data:
        return fenced("{raw} html", f'<div class="output">{data["text/html"]}</div>')
    return fenced("{code-block} text\n:class: output", data["text/plain"])


def fenced(head: str, text: str) -> str:
    return f"``````{head}\n{text.rstrip()}\n``````"
