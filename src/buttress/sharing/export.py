"""A run -> a folder that others can load, read and compare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.data import load_dataset
from buttress.errors import ButtressError, UserError
from buttress.files import replacing_folder, write_text
from buttress.models.checkpoint import tree_digest
from buttress.progress import Progress, Silent
from buttress.records.run import WHICH, Run, Which
from buttress.report.collect import collect_run
from buttress.sharing.card import Exported, write_card
from buttress.sharing.corrupted import corruption_records
from buttress.sharing.hub import check_repository, push
from buttress.sharing.leaderboard import Credit, board_records
from buttress.sharing.measured import Measured, about, measure
from buttress.sharing.weights import (
    DESCRIPTION,
    copy_source,
    read_model,
    write_description,
    write_weights,
)


@dataclass(frozen=True)
class Export:
    """What was written."""

    path: Path
    files: tuple[str, ...]
    weights_sha256: str
    left_out: tuple[str, ...]  # numbers that leaderboards ask for and that were not measured
    doubts: tuple[str, ...]
    hub: str = ""  # where it was uploaded to

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "export": str(self.path),
            "files": list(self.files),
            "weights_sha256": self.weights_sha256,
            "left_out": list(self.left_out),
            "doubts": list(self.doubts),
            "hub": self.hub or None,
        }


def export(  # noqa: PLR0913 - the public call
    run: str | Path | Run,
    to: str | Path,
    *,
    which: Which = "best",
    name: str = "",
    authors: str = "",
    link: str = "",
    force: bool = False,
    push_to_hub: str = "",
    progress: Progress | None = None,
) -> Export:
    """Writes the weights of a run, a model card and leaderboard records into a new folder.

    Args:
        run: the run or its directory.
        to: the folder to write; it appears whole or not at all.
        which: the ``best`` or the ``last`` epoch. Numbers are taken over only if they were
            measured on these weights.
        name: what the model is called; made from the run if empty.
        authors: who made it, for the card and the records.
        link: a paper or a page about it.
        force: replace an earlier export at ``to``.
        push_to_hub: ``OWNER/NAME`` of a Hugging Face repository to upload to; nowhere if empty.
        progress: where to say what is done and what will be uploaded.
    """
    progress, run = progress or Silent(), run if isinstance(run, Run) else Run(run)
    folder = Path(to).expanduser()
    if which not in WHICH:
        raise UserError(f"which must be one of {', '.join(WHICH)}, but got {which!r}")
    if push_to_hub:
        check_repository(push_to_hub)
    check_free(folder, force)
    credit = Credit(name or default_name(run), authors, link)
    with replacing_folder(folder) as made:
        facts = write_all(made, run, which, credit, progress)
        files = sorted(p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file())
    address = push(folder, push_to_hub, progress) if push_to_hub else ""
    left_out = tuple(r.left_out for r in facts.records if r.left_out)
    sha256 = str(facts.facts["weights_sha256"])
    return Export(folder, tuple(files), sha256, left_out, facts.measured.doubts, address)


def write_all(folder: Path, run: Run, which: Which, credit: Credit, progress: Progress) -> Exported:
    """Writes every file of an export."""
    task = progress.task(f"export: {run.path.name}", 4)
    view = collect_run(run, run.path.name)
    model = read_model(run, which)
    sha256 = write_weights(folder, model)
    source = copy_source(folder, view.model)
    task.advance(note="numbers")
    measured = measure(run, tree_digest(model.state_dict()), progress)
    classes = class_names(view.spec.dataset, model.num_classes, measured)
    facts = write_description(folder, model, view.spec, classes, sha256)
    task.advance(note="records")
    records = board_records(view, measured, credit) + corruption_records(view, measured, credit)
    for record in records:
        write_record(folder / record.path, record.content)
    task.advance(note="card")
    parameters = sum(p.numel() for p in model.parameters())
    found = Exported(view, which, credit, facts, parameters, source, measured, records)
    write_text(folder / "README.md", write_card(found))
    task.advance()
    task.close()
    return found


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_free(folder: Path, force: bool) -> None:
    """Refuses a place that holds anything but, with ``force``, an earlier export."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UserError(f"the name of a folder must be UTF-8, but got {str(folder)!r}") from None
    if folder.resolve() == Path.cwd():  # it would be moved from under the command
        raise UserError("an export cannot be the folder you are in; name one in it, or leave it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / DESCRIPTION).is_file():
        raise UserError(
            f"{folder} exists and is not an export; choose a folder that is new or empty"
        )
    if not force:
        raise UserError(f"{folder} holds an export already; choose another folder, or pass --force")


def default_name(run: Run) -> str:
    spec = run.spec
    model = Path(spec.model.replace(":", "/")).name
    return f"{model} {spec.recipe.objective.name} {spec.dataset.partition(':')[0]}"


def class_names(dataset: str, count: int, measured: Measured) -> tuple[str, ...]:
    """Of the data the run was trained on: from a record, else from the data set if it is here."""
    for suite in measured.suites:
        names = about(suite).get("classes")
        if suite.dataset == dataset and isinstance(names, list) and len(names) == count:
            return tuple(map(str, names))
    try:
        names = load_dataset(dataset).classes
    except (ButtressError, OSError):
        return ()
    return tuple(names) if len(names) == count else ()
