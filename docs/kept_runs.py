"""Records of finished studies that are kept in docs/results, packed, and their pages.

    python docs/kept_runs.py pack results table1 patch-size   # after `buttress study run`
    python docs/kept_runs.py unpack results                   # to continue them elsewhere

Of each finished run everything but weights is kept, in ``runs/KEY.tar.xz``; of each study its
answer, in ``studies/STUDY-SCALE/``, which follows from the records.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from answer_figure import draw_answer

if TYPE_CHECKING:
    from buttress.results.study_result import ClaimResult, StudyResult, TableValue
    from buttress.studies.spec import Scale

HERE = Path(__file__).parent
KEPT = HERE / "results"
ANSWER_STUDY, ANSWER_FIGURE = "table1-mini", HERE / "answer.svg"  # the figure of the README
FINDINGS_COLUMNS = (
    "at_clean", "pgd_linf", "worst_case",
    "strong_linf", "strong_l2", "strong_l1", "field_worst_case",
)  # fmt: skip
OMITTED = {"best.pt", "last.pt", "training_images.json"}


def pack_run(run: Path, archive: Path) -> None:
    """Pack the records of a run; equal records give equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as tar:
        for file in sorted(path for path in run.rglob("*") if path.is_file()):
            if file.name not in OMITTED and not file.name.startswith("."):
                info = tarfile.TarInfo(f"{run.name}/{file.relative_to(run).as_posix()}")
                info.size = file.stat().st_size
                tar.addfile(info, io.BytesIO(file.read_bytes()))
    if not archive.is_file() or archive.read_bytes() != packed.getvalue():
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(packed.getvalue())


def unpack_runs(kept: Path, runs: Path) -> None:
    """Unpack all kept runs to a folder; runs that are there already are left alone."""
    runs.mkdir(parents=True, exist_ok=True)
    for archive in sorted((kept / "runs").glob("*.tar.xz")):
        if not (runs / archive.name.removesuffix(".tar.xz")).exists():
            with tarfile.open(archive) as tar:
                tar.extractall(runs, filter="data")


def answer_files(kept: Path) -> list[Path]:
    return sorted(kept.glob("studies/*/answer.json"))


def pack_studies(results: Path, names: list[str], scale: Scale, kept: Path) -> None:
    """Pack the finished runs of studies, and write the answers that follow from them."""
    from buttress.results.study_result import study_result_path
    from buttress.studies import expand_study, load_study, write_study_answer
    from buttress.studies.jobs import make_jobs, read_statuses

    for name in names:
        expanded = expand_study(load_study(name), scale)
        for status in read_statuses(make_jobs(expanded, results)):
            if status.state == "done":
                pack_run(status.job.folder, kept / "runs" / f"{status.job.key}.tar.xz")
        folder = study_result_path(results, name, scale).parent
        with tempfile.TemporaryDirectory() as root:  # unfinished runs do not count
            copy = Path(root) / "studies" / folder.name
            if folder.is_dir():  # analyses of several runs, which need their weights
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("report"))
            unpack_runs(kept, Path(root) / "runs")
            write_study_answer(expanded, Path(root))
            shutil.copytree(copy, kept / "studies" / folder.name, dirs_exist_ok=True)
        if folder.name == ANSWER_STUDY:
            draw_answer(kept / "studies" / folder.name / "answer.json", ANSWER_FIGURE)


def write_site(kept: Path, target: Path, runs: Path) -> None:
    """The report of all kept runs and studies, from unpacked records."""
    from buttress.report import write_report

    unpack_runs(kept, runs)
    write_report(
        [runs], target, title="Results", subtitle="Kept records of finished studies",
        study_results=answer_files(kept),
    )  # fmt: skip


def results_page(kept: Path) -> str:
    """A section per study: its question, its claims and its table."""
    from buttress.results.study_result import read_study_result

    return "\n".join(_study_section(read_study_result(file)) for file in answer_files(kept))


def findings(kept: Path) -> str:
    """The table of the main study and its claims, by outcome."""
    from buttress.results.study_result import read_study_result

    result = read_study_result(kept / "studies" / ANSWER_STUDY / "answer.json")
    text = (
        f"{result.finished_runs} of {result.total_runs} runs are finished. Published values, of "
        f"full-size models, are in brackets.\n\n{table_of(result, FINDINGS_COLUMNS)}"
    )
    titles = {"holds": "What holds", "does not hold": "What does not", "undecided": "Undecided"}
    for outcome, title in titles.items():
        claims = [claim for claim in result.claims if claim.outcome == outcome]
        lines = [
            f"- {claim.id}: {claim.statement} (published: {claim.published}). {claim.evidence}"
            + (f" *{claim.reason}.*" if claim.reason else "")
            for claim in claims
        ]
        text += f"\n## {title}\n\n" + ("\n".join(lines) or "No claim so far.") + "\n"
    return text


def _study_section(result: StudyResult) -> str:
    page = f"results/studies/{result.study}-{result.scale}.html"
    finished = f"{result.finished_runs} of {result.total_runs} runs of `{result.study}` at scale"
    head = (
        f"## {result.title}\n\n{result.question} {finished} `{result.scale}` are finished; "
        f"source: {result.source}. "
        f'<a href="{page}">Its page</a> has intervals, figures and every run.\n'
    )
    return "\n".join([head, _claim_table(result), table_of(result)])


def _claim_table(result: StudyResult) -> str:
    rows = [["claim", "published", "other authors", "measured here"], ["---"] * 4]
    rows += [
        [f"{claim.id}: {claim.statement}", claim.published,
         "; ".join(other.outcome for other in claim.other_tables) or "no table",
         _measured_outcome(claim)]
        for claim in result.claims
    ]  # fmt: skip
    return _markdown_table(rows)


def _measured_outcome(claim: ClaimResult) -> str:
    reason = claim.reason or claim.evidence
    return f"**{claim.outcome}**" + (f": {reason}" if reason else "")


def table_of(result: StudyResult, columns: Sequence[str] = ()) -> str:
    """The measured rows of a study with all accuracies, or some; published values in brackets."""
    names = columns or [name for name in result.columns if result.units[name] == "percent"]
    titles = [result.column_titles[name] for name in names]
    rows = [[*result.axes, *titles], ["---"] * (len(result.axes) + len(names))]
    for line in result.rows:
        values = [line.values[name] for name in names]
        if any(value.value is not None for value in values):
            rows.append([*line.labels, *map(_format_value, values)])
    return _markdown_table(rows)


def _format_value(value: TableValue) -> str:
    measured = "" if value.value is None else f"{100 * value.value:.1f}%"
    if value.published is None:
        return measured
    return f"{measured} ({100 * value.published:.1f}%)"


def _markdown_table(rows: list[list[str]]) -> str:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("pack", "unpack"))
    parser.add_argument("results", type=Path, help="output folder of `buttress study run`")
    parser.add_argument("studies", nargs="*")
    parser.add_argument("--scale", default="mini")
    args = parser.parse_args()
    if args.command == "pack":
        pack_studies(args.results, args.studies, args.scale, KEPT)
    else:
        unpack_runs(KEPT, args.results / "runs")


if __name__ == "__main__":
    main()
