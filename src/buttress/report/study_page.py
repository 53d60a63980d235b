"""Content of the page of a study: claims, table with published values, figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFileError, UserError
from buttress.report.analyses import (
    AnalysisPicture,
    read_picture,
    read_pictures,
    svg_data_uri,
)
from buttress.report.charts import PublishedPair, draw_published_scatter
from buttress.report.collect import RunPage
from buttress.report.figures import ReportFigure
from buttress.report.formatting import format_duration, format_range, format_tenths, slugify
from buttress.report.study_figures import table_figures
from buttress.results.study_result import (
    RankAgreement,
    StudyResult,
    StudyTableRow,
    TableValue,
    read_study_result,
)
from buttress.system.files import safe_file_name

RESULT_FILE = "answer.json"


@dataclass(frozen=True)
class StudyPageData:
    """One study at one scale, and the folder its pictures are in."""

    result: StudyResult
    folder: Path
    slug: str

    @property
    def claim_counts(self) -> str:
        """``claims: 2 hold, 1 do not, 2 undecided``."""
        counts: Counter[str] = Counter(claim.outcome for claim in self.result.claims)
        if not counts:
            return "no claims"
        verbs = {"holds": "hold", "does not hold": "do not", "undecided": "undecided"}
        counts_text = [f"{counts[word]} {verb}" for word, verb in verbs.items() if counts[word]]
        return f"claims: {', '.join(counts_text)}"


def read_study_results(
    roots: Sequence[Path], result_files: Sequence[Path] = ()
) -> tuple[tuple[StudyPageData, ...], tuple[str, ...]]:
    """All studies below the roots and in ``result_files``, and which files could not be read."""
    studies: list[StudyPageData] = []
    problems: list[str] = []
    slug_counts: Counter[str] = Counter()
    for path in find_study_results(roots, result_files):
        try:
            answer = read_study_result(path)
        except (CorruptFileError, UserError, OSError) as error:
            display_path = f"{path.parent.name}/{path.name}"
            reason = str(error).replace(str(path), display_path)
            problems.append(
                f"{display_path} is unreadable; run `buttress study report` again ({reason})"
            )
            continue
        name = slugify(f"{answer.study}-{answer.scale}")
        slug_counts[name] += 1
        unique_slug = name if slug_counts[name] == 1 else f"{name}-{slug_counts[name]}"
        studies.append(StudyPageData(answer, path.parent, unique_slug))
    return tuple(studies), tuple(problems)


def find_study_results(roots: Sequence[Path], answers: Sequence[Path] = ()) -> list[Path]:
    """The files, each once: ``ROOT/answer.json``, and ``studies/NAME/answer.json`` below a root."""
    files_by_path: dict[Path, Path] = {}
    for root in map(Path, roots):
        files = [root / RESULT_FILE, *sorted(root.rglob(f"studies/*/{RESULT_FILE}"))]
        files_by_path.update((f.resolve(), f) for f in files if f.is_file())
    files_by_path.update((Path(f).resolve(), Path(f)) for f in answers)
    return list(files_by_path.values())


# Characters of pictures of single runs; the rest is on the pages of the runs.
MAX_PICTURE_CHARS = 4_000_000


@dataclass(frozen=True)
class FormattedValue:
    value: str = ""
    interval: str = ""
    published: str = ""
    difference: str = ""
    missing_reason: str = ""
    notes: tuple[int, ...] = ()
    is_untrustworthy: bool = False  # not trustworthy, not only warned of
    details: str = ""  # how many images and seeds are behind it
    sort_value: float | None = None


@dataclass(frozen=True)
class RunLink:
    """A run of a row; without a page if it is not in this report."""

    name: str
    slug: str = ""


@dataclass(frozen=True)
class FormattedRow:
    labels: tuple[str, ...]
    cells: tuple[FormattedValue, ...]
    runs: tuple[RunLink, ...]


@dataclass(frozen=True)
class RunPicture:
    """An analysis of one run."""

    run: RunLink
    picture: AnalysisPicture


def study_context(study: StudyPageData, runs: Mapping[str, RunPage]) -> dict[str, Any]:
    """``runs`` by their keys."""
    answer = study.result
    notes: dict[str, int] = {}
    rows = [format_row(line, answer, runs, notes) for line in answer.rows]
    return {
        "study": study,
        "answer": answer,
        "rows": rows,
        "notes": {n: text for text, n in notes.items()},
        "has_published": any(c.published for row in rows for c in row.cells),
        "scatters": [
            f for a in answer.rank_agreement if (f := published_scatter_figure(a, answer))
        ],
        "together": read_pictures(
            study.folder / f"{safe_file_name(name)}.json" for name in answer.group_analyses
        ),
        "figures": table_figures(answer),
        "analysis_figures": analysis_figures(study),
        "pictures": run_pictures(answer, runs),
        "facts": study_facts(answer),
        "failed": {
            run_links([key], answer, runs)[0]: reason for key, reason in answer.failed_runs.items()
        },
    }


def format_row(
    line: StudyTableRow, answer: StudyResult, runs: Mapping[str, RunPage], notes: dict[str, int]
) -> FormattedRow:
    cells = tuple(
        format_table_value(
            line.values.get(c, TableValue(missing_reason="missing")),
            answer.units.get(c, "percent"),
            notes,
        )
        for c in answer.columns
    )
    return FormattedRow(line.labels, cells, run_links(line.run_keys, answer, runs))


def format_table_value(number: TableValue, unit: str, notes: dict[str, int]) -> FormattedValue:
    value, published = finite_or_none(number.value), finite_or_none(number.published)
    low, high = finite_or_none(number.low), finite_or_none(number.high)
    has_both = value is not None and published is not None
    parts = {"images": number.images, "seeds": number.seeds}
    return FormattedValue(
        value="" if value is None else format_number(value, unit),
        interval=""
        if value is None or low is None or high is None
        else format_range(format_number(low, unit), format_number(high, unit)),
        published="" if published is None else format_number(published, unit),
        difference=format_signed((value or 0) - (published or 0), unit) if has_both else "",
        missing_reason=number.missing_reason or ("missing" if value is None else ""),
        notes=tuple(notes.setdefault(text, len(notes) + 1) for text in number.warnings),
        is_untrustworthy=value is not None and number.is_untrustworthy,
        details=", ".join(f"{count} {unit_name}" for unit_name, count in parts.items() if count),
        sort_value=value,
    )


def finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def format_number(value: float, unit: str) -> str:
    return format_tenths(value) if unit == "percent" else f"{value:.4g}"


def format_signed(value: float, unit: str) -> str:
    """``+1.2``: percentage points, or the number."""
    return f"{100 * value:+.1f}" if unit == "percent" else f"{value:+.3g}"


def run_links(
    keys: Sequence[str], answer: StudyResult, runs: Mapping[str, RunPage]
) -> tuple[RunLink, ...]:
    """Links to runs, named by their labels in the study."""
    return tuple(
        RunLink(answer.run_labels.get(key, key), runs[key].slug if key in runs else "")
        for key in keys
    )


def published_scatter_figure(agreement: RankAgreement, answer: StudyResult) -> ReportFigure | None:
    """Published against measured, one point per row."""
    column, unit = agreement.column, answer.units.get(agreement.column, "percent")
    pairs = []
    for line in answer.rows:
        number = line.values.get(column)
        value = None if number is None else finite_or_none(number.value)
        published = None if number is None else finite_or_none(number.published)
        if number is None or value is None or published is None:
            continue
        low, high = finite_or_none(number.low), finite_or_none(number.high)
        name = " / ".join(line.labels)
        pairs.append(PublishedPair(name, published, value, value if low is None else low,
                          value if high is None else high, bool(number.warnings)))  # fmt: skip
    if not pairs:
        return None
    return ReportFigure(
        answer.column_title(column),
        draw_published_scatter(pairs, answer.column_title(column), unit),
        correlation_text(agreement),
    )


def correlation_text(agreement: RankAgreement) -> str:
    if agreement.spearman is None:
        return f"{agreement.rows} rows: too few or constant values for a rank correlation"
    text = f"rank correlation {agreement.spearman:.2f}"
    if agreement.low is not None and agreement.high is not None:
        text += f" (95% {agreement.low:.2f} to {agreement.high:.2f})"
    return f"{text} over {agreement.rows} rows"


def analysis_figures(study: StudyPageData) -> tuple[AnalysisPicture, ...]:
    """Drawings of one analysis of several runs that are beside the answer."""
    pictures = (
        AnalysisPicture(f.title, f.caption, svg_data_uri(study.folder / f.file))
        for f in study.result.figures
        if f.kind == "analysis"
    )
    return tuple(picture for picture in pictures if picture.data_uri)


def run_pictures(answer: StudyResult, runs: Mapping[str, RunPage]) -> dict[str, list[RunPicture]]:
    """Analyses of single runs by name; figures up to a total size, summaries always."""
    keys = dict.fromkeys(key for line in answer.rows for key in line.run_keys)
    pictures: dict[str, list[RunPicture]] = {}
    chars_left = MAX_PICTURE_CHARS
    for name in answer.analyses:
        for run in (runs[key] for key in keys if key in runs):
            picture = read_picture(run.run.analysis_file(name))
            if picture is None or not (picture.summary or picture.data_uri or picture.reason):
                continue
            chars_left -= len(picture.data_uri)
            if chars_left < 0:
                picture = AnalysisPicture(picture.name, picture.summary, "", picture.reason)
            link = run_links([run.run.path.name], answer, runs)[0]
            pictures.setdefault(name, []).append(RunPicture(link, picture))
    return pictures


def study_facts(answer: StudyResult) -> dict[str, str]:
    """Cost and settings of the study."""
    cost = {
        (k.removesuffix("_seconds").replace("_", " ") + " time")
        if k.endswith("seconds")
        else k.replace("_", " "): format_duration(v) if k.endswith("seconds") else f"{v:,.6g}"
        for k, v in answer.cost.items()
    }
    settings = {
        k.replace("_", " "): ", ".join(map(str, v)) if isinstance(v, list) else str(v)
        for k, v in answer.settings.items()
        if v is not None
    }
    return {
        "scale": answer.scale,
        "runs": f"{answer.finished_runs} of {answer.total_runs} done",
        **cost,
        **settings,
    }
