"""Opens the pages in a real browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import CHROMIUM, Browser
from buttress.report import write_report
from buttress.statistics import paired_difference
from report_runs import make_run, make_spec

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium, which could not be installed here"
)

FILL = """((name, value) => {
  const field = document.forms[0].elements[name];
  field.value = value;
  field.dispatchEvent(new Event('input', {bubbles: true}));
})"""
SHOWN = "[...document.querySelectorAll('tr[data-training]')].filter(r => r.checkVisibility())"
NAMES = ".map(r => r.cells[1].dataset.value + ' ' + r.dataset.training)"
BROKEN = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNLABELLED = """[
  ...[...document.images].filter(i => !i.alt),
  ...[...document.querySelectorAll('svg[role=img]')].filter(s => !s.getAttribute('aria-label')),
  ...[...document.querySelectorAll('select, input')].filter(f => !f.labels.length),
].map(e => e.outerHTML.slice(0, 200))"""
# Text that stands out less from what is behind it than WCAG 2.2 asks for (4.5 to 1).
FAINT = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (c) => {
    const [r, g, b] = [0, 1, 2].map((i) => c[i] / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  for (const e of document.querySelectorAll('main *, header *, footer *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('svg, noscript, .hidden, option')) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)} ${e.outerHTML.slice(0, 120)}`);
  }
  return faint;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def site(study: Path, tmp_path: Path, browser: Browser) -> Iterator[Path]:
    """The folder of a report with every kind of page; pages must neither complain nor ask."""
    make_run(study / "runs" / "bad", make_spec("cait_tiny"), done=False).fail("out of memory")
    index = write_report([study], tmp_path / "out")
    browser.size(1200, 900)
    browser.complaints.clear()
    browser.requests.clear()
    yield index.parent
    assert browser.complaints == []
    assert [r for r in browser.requests if not r.startswith(("file:", "data:", "about:"))] == []


def pages(site: Path) -> list[Path]:
    result = sorted(site.rglob("*.html"))
    assert {p.parent.name for p in result} == {"out", "models", "studies"}
    return result


def test_rows_sort_by_mouse_and_keyboard_and_missing_ones_stay_last(
    site: Path, browser: Browser
) -> None:
    (site.parent / "runs" / "a" / "eval" / "quick" / "pgd-l2.parquet").unlink()
    browser.open(write_report([site.parent / "runs"], site))
    button = (
        "[...document.querySelectorAll('thead button')].find(b => /pgd-l2/.test(b.textContent))"
    )
    browser.ask(f"{button}.click()")
    falling = browser.ask(SHOWN + NAMES)
    browser.ask(f"{button}.focus()")
    browser.press("Enter")
    rising = browser.ask(SHOWN + NAMES)

    assert falling == ["resnet_tiny pgd_at", "resnet_tiny standard", "vit_tiny pgd_at"]
    assert rising == ["resnet_tiny standard", "resnet_tiny pgd_at", "vit_tiny pgd_at"]


def test_rows_are_filtered_and_come_back(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html")

    assert len(browser.ask(SHOWN + NAMES)) == 3
    browser.ask(f"{FILL}('category', 'cnn')")
    assert browser.ask(SHOWN + NAMES) == ["resnet_tiny pgd_at", "resnet_tiny standard"]
    browser.ask(f"{FILL}('training', 'standard')")
    assert browser.ask(SHOWN + NAMES) == ["resnet_tiny standard"]
    assert browser.ask("document.querySelector('output').value") == "1 of 3 rows shown"
    browser.ask("document.forms[0].querySelector('button').click()")
    browser.wait_until(f"{SHOWN}.length === 3")
    browser.ask("document.forms[0].elements.text.focus()")
    for letter in "vit":
        browser.press(letter)
    assert browser.ask(SHOWN + NAMES) == ["vit_tiny pgd_at"]
    browser.ask(f"{FILL}('text', ''); {FILL}('dataset', 'digits')")
    assert len(browser.ask(SHOWN + NAMES)) == 3


def test_links_open_the_pages_of_models_and_studies(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html")
    browser.ask("document.querySelector('nav a[href^=studies]').click()")
    browser.wait_until("document.querySelector('h1')?.textContent === 'A made-up study'")
    browser.ask("document.querySelector('td.runs a').click()")
    browser.wait_until("document.querySelector('h1')?.textContent.trim() === 'vit_tiny'")
    browser.ask("[...document.links].find(a => /Compare/.test(a.textContent)).click()")
    browser.wait_until("document.querySelector('h1')?.textContent === 'Compare two models'")
    assert browser.ask("document.getElementById('name-a').textContent").startswith("A: vit_tiny")
    browser.ask("document.querySelector('nav a').click()")
    browser.wait_until("document.querySelector('.leaderboard') !== null")


def test_every_page_shows_its_figures_and_fits_a_phone_in_light_and_dark(
    site: Path, browser: Browser
) -> None:
    figures = 0
    for page in pages(site):
        for is_dark in (False, True):
            browser.size(375, 800, is_dark=is_dark)
            browser.open(page)
            browser.wait_until("[...document.images].every(i => i.complete)")
            assert browser.ask(BROKEN) == 0, page
            assert browser.ask(TOO_WIDE) <= 0, page
            assert browser.ask(FAINT) == [], (page, is_dark)
        assert browser.ask(UNLABELLED) == [], page
        assert browser.ask("document.querySelectorAll('main, header, footer').length") == 3, page
        assert browser.ask("document.querySelectorAll('h1').length") == 1, page
        figures += browser.ask("document.images.length + document.querySelectorAll('svg').length")
    assert figures > 60


def test_marks_of_warnings_in_wide_tables_do_not_widen_the_page(
    tmp_path: Path, browser: Browser
) -> None:
    names = ["clean", *(f"attack-number-{k}" for k in range(8))]
    warnings = {name: ["the gradient is flat"] for name in names[1:]}
    make_run(tmp_path / "r", None, {name: [1, 0] * 5 for name in names}, warnings=warnings)
    browser.size(375, 800)
    browser.open(write_report([tmp_path / "r"], tmp_path / "out"))
    assert browser.ask("document.querySelectorAll('.leaderboard .mark .hidden').length") >= 8
    assert browser.ask(TOO_WIDE) <= 0


def compared(browser: Browser) -> list[list[str]]:
    result: list[list[str]] = browser.ask(
        "[...document.querySelectorAll('#numbers tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    return result


def choose(browser: Browser, box: str, value: Any) -> None:
    chosen = f"document.getElementById('compare').elements.{box}"
    browser.ask(f"{chosen}.value = {value}; {chosen}.dispatchEvent(new Event('change'))")


def test_the_browser_counts_as_python_does(site: Path, browser: Browser, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    flags = {
        name: {"clean": generator.random(1000) < p, "pgd-linf": generator.random(1000) < p - 0.2}
        for name, p in (("vit_tiny", 0.9), ("resnet_tiny", 0.85), ("cait_tiny", 0.4))
    }
    for name, given in flags.items():
        make_run(tmp_path / "many" / name, make_spec(name), given)
    browser.open(write_report([tmp_path / "many"], tmp_path / "compared").with_name("compare.html"))

    for second in (1, 2):
        choose(browser, "b", second)
        names = [browser.ask(f"document.getElementById('name-{x}').textContent") for x in "ab"]
        a, b = (flags[n.split()[1]] for n in names)
        worst = [f["clean"] & f["pgd-linf"] for f in (a, b)]
        rows = compared(browser)
        assert [r[0] for r in rows] == ["worst-case robust accuracy", "clean", "pgd-linf"]
        pairs = [worst, (a["clean"], b["clean"]), (a["pgd-linf"], b["pgd-linf"])]
        for row, (x, y) in zip(rows, pairs, strict=True):
            assert row[1:] == expected(x, y)


def expected(x: np.ndarray, y: np.ndarray) -> list[str]:
    result = paired_difference(x, y)
    low, high = result.interval
    return [
        f"{100 * x.mean():.1f}",
        f"{100 * y.mean():.1f}",
        signed(result.value),
        f"{signed(low)} to {signed(high)}",
        str(result.counts.only_a),
        str(result.counts.only_b),
        "< 0.001" if result.p_value < 0.001 else f"{result.p_value:.3f}",
    ]


def signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def test_without_scripts_the_pages_still_read(site: Path, browser: Browser) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(site / "compare.html")
        assert "needs JavaScript" in browser.ask("document.body.innerText")
        browser.open(site / "index.html")
        assert len(browser.ask(SHOWN)) == 3
        assert not browser.ask("document.querySelector('form').checkVisibility()")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.fixture
def long_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A leaderboard of ten runs on three pages; run k has k + 1 of ten images robust."""
    monkeypatch.setattr("buttress.report.pages.PAGE_ROWS", 4)
    for k in range(10):
        spec = make_spec("vit_tiny" if k % 2 else "resnet_tiny", seed=k)
        robust = [i <= k for i in range(10)]
        flags = {"clean": [1] * 10, "pgd-linf": robust}
        make_run(tmp_path / "many" / f"r{k}", spec, flags, category="cnn")
    return write_report([tmp_path / "many"], tmp_path / "long")


def test_a_long_leaderboard_is_paged_sorted_and_filtered_as_a_whole(
    long_page: Path, browser: Browser
) -> None:
    seeds = SHOWN + ".map(r => Number(r.cells[1].dataset.value.split(' ').pop()))"
    pager = "document.querySelector('.pager output').value"
    click = (
        "[...document.querySelectorAll('.pager button')].find(b => b.textContent === '{}').click()"
    )
    sort = "[...document.querySelectorAll('thead button')].find(b => /pgd/.test(b.textContent))"
    browser.open(long_page)

    assert browser.ask(seeds) == [9, 8, 7, 6]
    assert browser.ask(pager) == "1\u20134 of 10"
    browser.ask(click.format("Next"))
    browser.wait_until(f"{pager} === '5\u20138 of 10'")
    assert browser.ask(seeds) == [5, 4, 3, 2]
    browser.ask(click.format("Next"))
    browser.wait_until(f"{pager} === '9\u201310 of 10'")
    assert browser.ask("document.querySelectorAll('.pager button')[1].disabled")
    browser.ask(f"{sort}.click()")
    browser.ask(f"{sort}.click()")
    browser.wait_until(f"{seeds}[0] === 0")
    assert browser.ask(seeds) == [0, 1, 2, 3]
    browser.ask(f"{FILL}('text', 'vit_tiny')")
    browser.wait_until(f"{pager} === '1\u20134 of 5'")
    assert browser.ask(seeds) == [1, 3, 5, 7]
    assert browser.ask("document.querySelector('form output').value") == "5 of 10 rows shown"
    browser.ask("document.forms[0].querySelector('button').click()")
    browser.wait_until(f"{pager} === '1\u20134 of 10'")
