"""The built pages: each has its own, formulas are whole, links and images lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

import buttress
from doc_blocks import ROOT

DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))
PAGES = sorted(
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in (*DOCS.glob("*.md"), *(DOCS / "analyses").glob("*.md"))
)
MATH = re.compile(r"\{math\}`([^`]+)`|(?<![\\$`])\$\$?([^$`]+)\$\$?(?!\w)")
MATH_BLOCK = re.compile(r"^```\{math\}\n(.+?)```", re.M | re.S)
pytestmark = pytest.mark.slow  # it builds the site; part of `make test-docs`
COMMAND = re.compile(r"\\[a-zA-Z]+")


class Page(HTMLParser):
    """The title, the ids, the links, the images, the formulas and the running text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.title, self.text, self.formulas = "", "", ""
        self.stack: list[tuple[str, str]] = []  # tag, class
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]
        if tag not in ("img", "link", "meta", "input", "br", "hr", "col", "source"):
            self.stack.append((tag, given.get("class", "")))

    def handle_endtag(self, tag: str) -> None:
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self.stack}
        if any(kind.startswith("math ") for _, kind in self.stack):
            self.formulas += data
        elif "h1" in tags and "a" not in tags:
            self.title += data
        elif not tags & {"pre", "code", "script", "style", "title", "dt"}:
            self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` builds it: a warning is an error."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS),
         str(target)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    return target


@pytest.fixture(scope="module")
def built(site: Path) -> dict[str, Page]:
    """The pages that Sphinx wrote, by their path; reports of studies are not among them."""
    paths = [p.relative_to(site) for p in site.rglob("*.html")]
    kept = [p for p in paths if p.parts[0] not in ("examples", "_static")]
    return {p.with_suffix("").as_posix(): Page(site / p) for p in kept}


def test_every_page_has_its_own_with_its_title(built: dict[str, Page]) -> None:
    assert len(PAGES) > 40
    for name in PAGES:
        source = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        (title,) = re.findall(r"\A# (.+)$", source, flags=re.M)
        assert name in built, f"docs/{name}.md has no page"
        assert built[name].title == title.replace("`", ""), f"{name}.html is another page"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_show_what_their_cells_print(
    path: Path, site: Path, built: dict[str, Page]
) -> None:
    """The build executed them: a cell that raises would have failed it."""
    html = (site / "tutorials" / f"{path.stem}.html").read_text(encoding="utf-8")
    assert built[f"tutorials/{path.stem}"].title in path.read_text(encoding="utf-8")
    assert html.count("output") > 3
    assert f"{path.name}" in html, "the notebook can be downloaded"


def test_the_reference_has_every_public_name(built: dict[str, Page]) -> None:
    from buttress.attacks import ATTACKS

    others = {"__version__", "analyse", "attacks"}  # no objects of their own
    names = [f"buttress.{name}" for name in buttress.__all__ if name not in others]
    names += [f"buttress.attacks.{entry.value.__name__}" for entry in ATTACKS]
    assert [name for name in names if name not in built["reference"].ids] == []


def test_the_install_page_lists_every_extra() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = settings.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", section, flags=re.M)
    for page in ("docs/install.md", "README.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [extra for extra in extras if f"`{extra}`" not in text] == [], page


def test_pictures_of_pages_are_small() -> None:
    pictures = [*DOCS.glob("*.png"), *(DOCS / "gallery").glob("*.png")]
    assert len(pictures) > 4
    assert [p.name for p in pictures if p.stat().st_size > 200_000] == []


@pytest.mark.parametrize("name", PAGES)
def test_formulas_are_formulas_and_keep_their_backslashes(
    name: str, built: dict[str, Page]
) -> None:
    source = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(```+).*?^\1$", "", source, flags=re.M | re.S)
    written = [a or b for a, b in MATH.findall(prose)] + MATH_BLOCK.findall(source)
    page = built[name]
    shown = re.sub(r"\s", "", page.formulas)
    for formula in written:
        assert re.sub(r"\s", "", formula) in shown, f"{name}: {formula}"
    assert not COMMAND.findall(page.text), f"{name}: TeX that is not a formula"
    assert not re.findall(r"\$\$|\$\w|:math:|\{math\}|\\\(|\*\*|\]\(|```", page.text), name


def test_formulas_of_docstrings_keep_their_backslashes(built: dict[str, Page]) -> None:
    """Those in the tables and on the pages of attacks."""
    assert r"\delta \leftarrow (1-\gamma)\delta" in built["attacks"].formulas
    assert r"\Pi(x + \epsilon\, s(\nabla \mathrm{CE}))" in built["attacks"].formulas
    assert r"\mathrm{CE}(f(x), y)" in built["training"].formulas


def test_links_and_images_lead_somewhere(site: Path, built: dict[str, Page]) -> None:
    count = 0
    for name, page in built.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            folder = (site / f"{name}.html").parent
            path = (folder / unquote(parts.path)).resolve() if parts.path else site / f"{name}.html"
            assert path.exists(), f"{name}.html: {target}"
            other = path.relative_to(site.resolve()).with_suffix("").as_posix()
            if "=" in parts.fragment:  # a choice on that page, such as which models it compares
                chosen = dict(parse_qsl(parts.fragment))
                assert chosen, f"{name}.html: {target}"
                known = path.read_text(encoding="utf-8")
                assert all(f'"{value}"' in known for value in chosen.values()), target
            elif parts.fragment and other in built:
                assert unquote(parts.fragment) in built[other].ids, f"{name}.html: {target}"
            count += 1
    assert count > 1000
