"""Print the section of the changelog for a tag: python .github/release_notes.py v0.1.0.

Fails unless the tag, the version of the package and the newest release of the changelog agree.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE = re.compile(r"^## \[(?P<version>\d+\.\d+\.\d+)\] - (?P<date>\d{4}-\d\d-\d\d)$", re.M)


def package_version(root: Path = ROOT) -> str:
    """Read ``__version__`` without importing the package."""
    text = (root / "src/buttress/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.M)
    if found is None:
        raise ValueError('expected a line __version__ = "..." in src/buttress/__init__.py')
    return found[1]


def release_sections(changelog: str) -> dict[str, str]:
    """Text of each release by version, in the order of the file; Unreleased is left out."""
    heads = list(RELEASE.finditer(changelog))
    ends = [*(head.start() for head in heads[1:]), len(changelog)]
    return {
        head["version"]: changelog[head.end() : end].strip()
        for head, end in zip(heads, ends, strict=True)
    }


def release_notes(tag: str, version: str, changelog: str) -> str:
    """The section of the release named by ``tag``.

    Raises:
        ValueError: if tag, version and the newest release of the changelog differ, or the section
            is empty.
    """
    sections = release_sections(changelog)
    newest = next(iter(sections), None)
    if not tag == f"v{version}" == f"v{newest}":
        raise ValueError(
            f"tag, version and changelog must agree, but the tag is {tag}, the version of the "
            f"package {version} and the newest release in CHANGELOG.md {newest}"
        )
    if not sections[version]:
        raise ValueError(f"expected text under [{version}] in CHANGELOG.md, but it is empty")
    return sections[version]


if __name__ == "__main__":
    try:
        text = (ROOT / "CHANGELOG.md").read_text("utf-8")
        print(release_notes(sys.argv[1], package_version(), text))
    except ValueError as error:
        sys.exit(str(error))
