"""A report for a static host: pages, numbers as JSON, a feed; the same records, the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from buttress.cli.main import run_cli
from buttress.errors import UserError
from buttress.report import write_site
from report_runs import ROBUST, SECOND, make_run, make_spec

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make_run(folder / "a", make_spec("vit_tiny"), ROBUST)
    make_run(folder / "b", make_spec("resnet_tiny"), SECOND)
    make_run(folder / "c", make_spec("pvt_v2_tiny"))
    return folder


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_sites_of_the_same_records_are_equal(runs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_site([runs], tmp_path / name, title='A "b": <c>', url="https://example.org/r")
    files = read_all(tmp_path / "one")
    assert files == read_all(tmp_path / "two")
    assert {"index.html", ".nojekyll", "README.md", "results.json", "feed.xml"} <= set(files)
    (tmp_path / "one" / "README.md").write_text("mine")
    write_site([runs], tmp_path / "one")
    assert (tmp_path / "one" / "README.md").read_text() == "mine"


def test_the_numbers_are_those_of_the_records(runs: Path, tmp_path: Path) -> None:
    assert run_cli(["report", str(runs), "--out", str(tmp_path / "site"), "--site"]) == 0
    results = json.loads((tmp_path / "site" / "results.json").read_text())
    assert results["schema"] == "buttress-results/1"
    by_model = {run["model"]: run for run in results["runs"]}
    (result,) = by_model["vit_tiny"]["evaluations"]
    assert result["worst_case"]["accuracy"] == pytest.approx(0.4)
    assert result["attacks"]["pgd-l2"] | {"interval": None} == {
        "accuracy": 0.6, "interval": None, "attack": "pgd", "threat": "L2:1", "args": "steps=20",
    }  # fmt: skip
    assert (result["images"], result["dataset"], result["suite"]) == (10, "digits", "quick")
    assert by_model["pvt_v2_tiny"]["evaluations"] == []
    for run in results["runs"]:
        assert (tmp_path / "site" / run["page"]).is_file()


def test_the_feed_is_atom_and_leads_to_the_pages(runs: Path, tmp_path: Path) -> None:
    write_site([runs], tmp_path / "site", title="A & <b>", url="https://example.org/r/")
    feed = ElementTree.fromstring((tmp_path / "site" / "feed.xml").read_text())
    assert feed.findtext(f"{ATOM}title") == "A & <b>"
    entries = feed.findall(f"{ATOM}entry")
    assert len(entries) == 3
    times = [entry.findtext(f"{ATOM}updated") or "" for entry in entries]
    assert times == sorted(times, reverse=True)
    assert feed.findtext(f"{ATOM}updated") == times[0]
    for entry in entries:
        link = entry.find(f"{ATOM}link")
        assert link is not None
        page = link.attrib["href"].removeprefix("https://example.org/r/")
        assert (tmp_path / "site" / page).is_file()
    summaries = " ".join(entry.findtext(f"{ATOM}summary") or "" for entry in entries)
    assert "quick: 40.0% worst-case robust accuracy" in summaries
    assert "not evaluated" in summaries


def test_the_front_matter_is_that_of_a_static_space(runs: Path, tmp_path: Path) -> None:
    write_site([runs], tmp_path / "site", title='Quotes " and: colons')
    _, front, _ = (tmp_path / "site" / "README.md").read_text().split("---\n", 2)
    fields = yaml.safe_load(front)
    assert (fields["sdk"], fields["app_file"]) == ("static", "index.html")
    assert fields["title"] == 'Quotes " and: colons'


def test_mistakes(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="http"):
        write_site([runs], tmp_path / "site", url="example.org")
    assert run_cli(["report", str(runs), "--url", "https://example.org"]) == 2
    assert "add --site" in capsys.readouterr().err
