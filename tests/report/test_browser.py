"""Opens the pages in a real browser, where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from buttress.report import write_report

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to open the pages"),
]

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--dump-dom",
]


def open_page(page: Path, profile: Path) -> str:
    """The page as the browser has it after running its script; fails on console messages."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return done.stdout


def test_index_renders_and_its_headings_become_buttons(runs: Path, tmp_path: Path) -> None:
    dom = open_page(write_report([runs], tmp_path / "out"), tmp_path / "profile")

    assert "held best" in dom
    assert dom.count('<button type="button"') == 8
    assert dom.count("<svg") >= 6


def test_click_sorts_and_keeps_missing_last(runs: Path, tmp_path: Path) -> None:
    (runs / "a" / "eval" / "quick" / "pgd-l2.parquet").unlink()
    index = write_report([runs], tmp_path / "out")
    page = re.sub(r"<meta http-equiv[^>]*>", "", index.read_text())
    click = "document.querySelectorAll('thead button')[6].click()"  # pgd-l2
    index.write_text(page.replace("</body>", f"<script>{click};{click}</script></body>"))

    dom = open_page(index, tmp_path / "profile")

    body = dom[dom.index("<tbody>") : dom.index("</tbody>")]
    assert re.findall(r'class="training" data-value="(\w+)"', body) == [
        "standard",
        "pgd_at",
        "pgd_at",
    ]
    assert re.findall(r'class="model" data-value="(\w+)"', body)[-1] == "vit_tiny"


def test_model_pages_render(runs: Path, tmp_path: Path) -> None:
    write_report([runs], tmp_path / "out")
    page = next((tmp_path / "out" / "models").glob("vit_tiny*.html"))

    dom = open_page(page, tmp_path / "profile")

    assert dom.count("<img") == 18
    assert "Where this comes from" in dom
