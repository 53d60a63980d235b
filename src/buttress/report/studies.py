"""Finds and reads the answers of studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from buttress.errors import CorruptFile, UserError
from buttress.records.answer import Answer, read_answer
from buttress.report.words import slug

ANSWER = "answer.json"


@dataclass(frozen=True)
class StudyView:
    """One study at one scale, and the folder its pictures are in."""

    answer: Answer
    folder: Path
    slug: str

    @property
    def words(self) -> str:
        """``claims: 2 hold, 1 do not, 2 undecided``."""
        counts: Counter[str] = Counter(claim.word for claim in self.answer.claims)
        if not counts:
            return "no claims"
        spelt = {"holds": "hold", "does not hold": "do not", "undecided": "undecided"}
        said = [f"{counts[word]} {verb}" for word, verb in spelt.items() if counts[word]]
        return f"claims: {', '.join(said)}"


def collect_studies(
    roots: Sequence[Path], answers: Sequence[Path] = ()
) -> tuple[tuple[StudyView, ...], tuple[str, ...]]:
    """All studies below the roots and in ``answers``, and which files could not be read."""
    found: list[StudyView] = []
    problems: list[str] = []
    used: Counter[str] = Counter()
    for path in find_answers(roots, answers):
        try:
            answer = read_answer(path)
        except (CorruptFile, UserError, OSError) as error:
            place = f"{path.parent.name}/{path.name}"
            reason = str(error).replace(str(path), place)
            problems.append(f"{place} is unreadable, answer the study again ({reason})")
            continue
        name = slug(f"{answer.study}-{answer.scale}")
        used[name] += 1
        own = name if used[name] == 1 else f"{name}-{used[name]}"
        found.append(StudyView(answer, path.parent, own))
    return tuple(found), tuple(problems)


def find_answers(roots: Sequence[Path], answers: Sequence[Path] = ()) -> list[Path]:
    """The files, each once: ``ROOT/answer.json``, and ``studies/NAME/answer.json`` below a root."""
    found: dict[Path, Path] = {}
    for root in map(Path, roots):
        files = [root / ANSWER, *sorted(root.rglob(f"studies/*/{ANSWER}"))]
        found.update((f.resolve(), f) for f in files if f.is_file())
    found.update((Path(f).resolve(), Path(f)) for f in answers)
    return list(found.values())
