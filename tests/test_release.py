"""What a release needs: one version everywhere, a changelog in order, and pins that agree."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import buttress

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
RELEASE = re.compile(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})")
TWO_RELEASES = "## [Unreleased]\n- c\n## [0.2.0] - 2030-01-02\n- b\n## [0.1.0] - 2029-01-02\n- a\n"

SCRIPT = runpy.run_path(str(ROOT / ".github/release_notes.py"))
package_version: Callable[[], str] = SCRIPT["package_version"]
release_notes: Callable[[str, str, str], str] = SCRIPT["release_notes"]


def releases() -> list[tuple[Version, date]]:
    """Version and date of each release in the order of the changelog."""
    found = [RELEASE.fullmatch(heading) for heading in HEADING.findall(CHANGELOG)[1:]]
    assert all(found), "every heading after Unreleased must read `## [X.Y.Z] - YYYY-MM-DD`"
    return [(Version(m[1]), date.fromisoformat(m[2])) for m in found if m is not None]


def workflows() -> dict[str, Any]:
    """Each workflow as YAML by its file name."""
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    return {file.name: yaml.safe_load(file.read_text("utf-8")) for file in files}


def test_the_changelog_begins_with_unreleased_and_ends_with_the_oldest_release() -> None:
    assert HEADING.findall(CHANGELOG)[0] == "[Unreleased]"
    versions, dates = zip(*releases(), strict=True)
    assert list(versions) == sorted(set(versions), reverse=True)
    assert list(dates) == sorted(dates, reverse=True)


def test_the_newest_release_is_the_version_of_the_package() -> None:
    assert str(releases()[0][0]) == buttress.__version__ == package_version()


def test_the_citation_names_the_newest_release() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    version, released = releases()[0]
    assert (cited["version"], cited["date-released"]) == (str(version), released)


def test_release_notes_are_the_section_of_the_tag() -> None:
    assert release_notes("v0.2.0", "0.2.0", TWO_RELEASES) == "- b"
    notes = release_notes(f"v{buttress.__version__}", buttress.__version__, CHANGELOG)
    assert notes
    assert "Unreleased" not in notes


@pytest.mark.parametrize(
    ("tag", "version"), [("v0.1.0", "0.2.0"), ("0.2.0", "0.2.0"), ("v0.1.0", "0.1.0")]
)
def test_release_notes_are_refused_unless_tag_version_and_changelog_agree(
    tag: str, version: str
) -> None:
    with pytest.raises(ValueError, match="must agree, but the tag is"):
        release_notes(tag, version, TWO_RELEASES)


def test_release_notes_are_refused_when_they_are_empty() -> None:
    with pytest.raises(ValueError, match="it is empty"):
        release_notes("v0.2.0", "0.2.0", "## [0.2.0] - 2030-01-02\n")


def test_the_lowest_versions_are_those_that_the_package_admits() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    lowest: dict[str, Version] = {}
    for pin in pins:
        version = Version(str(pin.specifier).removeprefix("=="))
        lowest[pin.name] = min(version, lowest.get(pin.name, version))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in project["dependencies"]:
        needed = Requirement(text)
        (bound,) = (s.version for s in needed.specifier if s.operator == ">=")
        name = needed.name.lower().replace("_", "-")
        assert lowest[name] == Version(bound), f"{name}: {lowest[name]} is tested, not {bound}"


def test_every_action_is_pinned_by_commit_and_every_job_has_a_limit() -> None:
    assert set(workflows()) == {"ci.yml", "release.yml", "weekly.yml"}
    for name, workflow in workflows().items():
        assert workflow["permissions"] == {"contents": "read"}, name
        assert "concurrency" in workflow, name
        for job in workflow["jobs"].values():
            if "uses" in job:  # another workflow, with limits of its own
                continue
            assert job["timeout-minutes"] <= 360, name
            for step in job["steps"]:
                if "uses" in step:
                    assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]


def test_ci_runs_only_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    steps = [
        step["run"]
        for workflow in workflows().values()
        for job in workflow["jobs"].values()
        for step in job.get("steps", [])
        if "run" in step
    ]
    targets = {name for run in steps for name in re.findall(r"^make ([\w-]+)", run, re.MULTILINE)}
    assert targets >= {"check", "test", "docs", "coverage", "wheel-test", "test-all"}
    missing = {t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)}
    assert not missing, f"the Makefile has no target {missing}"


def test_torch_and_torchvision_end_at_the_newest_tested_pair() -> None:
    """A torchvision admits one torch: without a bound pip would replace an installed torch."""
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for needed in map(Requirement, project["dependencies"]):
        if needed.name in ("torch", "torchvision"):
            (pin,) = re.findall(rf"^{needed.name}==(\S+)$", pins, re.MULTILINE)
            major, minor = Version(pin).release[:2]
            (bound,) = (s.version for s in needed.specifier if s.operator == "<")
            assert bound == f"{major}.{minor + 1}"
