"""The code blocks of the README and the documentation, and how a reader would run them."""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Written before a block, a comment says where it is saved, what it is a part of, or why no test
# runs it. Neither GitHub nor the built pages show it.
COMMENT = re.compile(r"<!-- (file|part of|not run): (.+) -->")
FENCE = re.compile(r"^ *(```+|~~~+)(.*)$")


class Block(NamedTuple):
    page: str  # relative to the root
    line: int  # of its fence
    language: str
    text: str
    file: str = ""  # where the reader saves it
    part: str = ""  # the kind of file it is a part of
    not_run: str = ""  # the reason

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def list_pages() -> list[str]:
    """Every page that is written by hand, relative to the root."""
    docs = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    kept = [p for p in docs if p.parts[1] not in ("_build", "_generated", "examples")]
    return ["README.md", "CONTRIBUTING.md", *sorted(str(p) for p in kept)]


def read_blocks(page: str) -> list[Block]:
    return parse_blocks((ROOT / page).read_text(encoding="utf-8"), page)


def parse_blocks(text: str, page: str) -> list[Block]:
    """The code blocks of a page in order; directives such as ``{include}`` are left out."""
    blocks: list[Block] = []
    fence, start, info, body = "", 0, "", list[str]()
    said: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if not fence and found:
            fence, start, info, body = found[1], number, found[2].strip(), []
        elif fence and found and found[1] == fence and not found[2].strip():
            if not info.startswith("{"):
                code = "".join(f"{code}\n" for code in body)
                blocks.append(
                    Block(page, start, info, code, said.get("file", ""), said.get("part of", ""),
                          said.get("not run", ""))
                )  # fmt: skip
            fence, said = "", {}
        elif fence:
            body.append(line)
        elif comments := COMMENT.findall(line):
            said |= dict(comments)
        elif line.strip():
            said = {}
    assert not fence, f"{page}:{start}: the block has no end"
    return blocks


class Command(NamedTuple):
    words: list[str]
    output: str = ""  # the file that standard output goes to


def shell_commands(text: str, folder: Path) -> list[Command]:
    """The commands of a block as a shell in ``folder`` would start them."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        output = ""
        if ">" in words:
            at = words.index(">")
            words, output = words[:at], words[at + 1]
        if words:
            commands.append(Command([w for word in words for w in expand(word, folder)], output))
    return commands


def expand(word: str, folder: Path) -> list[str]:
    if "*" not in word:
        return [word]
    return sorted(glob.glob(word, root_dir=folder)) or [word]
