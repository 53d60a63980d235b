"""Export a run to a folder, and upload it to the Hugging Face Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from buttress.data import load_dataset
from buttress.errors import ButtressError, RunError, UserError
from buttress.export.leaderboard import ModelCredit, autoattack_records, corruption_records
from buttress.export.model_card import ExportContent, render_model_card
from buttress.export.verified import VerifiedResults, read_verified_results
from buttress.export.weights import load_run_model
from buttress.models.loading.checkpoint import content_digest
from buttress.models.loading.folder import DESCRIPTION_FILE
from buttress.models.saving import copy_model_source, write_description, write_weights
from buttress.results.run import CHECKPOINT_NAMES, CheckpointName, Run
from buttress.results.run_results import RunResults
from buttress.system.files import atomic_write_folder, write_text
from buttress.system.locks import lock_folder
from buttress.system.progress import Progress, SilentProgress

REPOSITORY_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class HubClient(Protocol):
    """The part of ``huggingface_hub.HfApi`` that is used."""

    def create_repo(self, repo_id: str, *, repo_type: str, exist_ok: bool) -> object: ...

    def upload_folder(
        self, *, repo_id: str, repo_type: str, folder_path: str, commit_message: str
    ) -> object: ...


def check_repository_name(name: str) -> str:
    if not REPOSITORY_PATTERN.fullmatch(name) or ".." in name or "--" in name:
        raise UserError(f"--push-to-hub must be OWNER/NAME, but got {name!r}")
    return name


def push_folder(folder: Path, repository: str, progress: Progress) -> str:
    """Log and upload every file of a folder; return its URL."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    lines = [f"  {p.relative_to(folder).as_posix()}  {p.stat().st_size:,} bytes" for p in files]
    progress.log(
        "\n".join([f"uploading to {repository} on the Hugging Face Hub (public if new):", *lines])
    )
    try:
        hub = hub_client()
        hub.create_repo(repository, repo_type="model", exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            repo_type="model",
            folder_path=str(folder),
            commit_message="Exported by Buttress",
        )
    except Exception as error:  # network, account and hub errors have many types
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunError(
            f"the upload to {repository} failed: {reason}. The export in {folder} is "
            "complete; run `hf auth login`, then the same command with --force"
        ) from error
    return f"https://huggingface.co/{repository}"


def hub_client() -> HubClient:
    from huggingface_hub import HfApi

    return HfApi()


@dataclass(frozen=True)
class ExportResult:
    """The files of an export, and what is missing."""

    path: Path
    files: tuple[str, ...]
    weights_sha256: str
    omitted: tuple[str, ...]  # leaderboard fields that were not measured
    warnings: tuple[str, ...]
    hub_url: str = ""  # where it was uploaded to

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "folder": str(self.path),
            "files": list(self.files),
            "weights_sha256": self.weights_sha256,
            "omitted": list(self.omitted),
            "warnings": list(self.warnings),
            "hub_url": self.hub_url or None,
        }


def export_run(  # noqa: PLR0913 - the public call
    run: str | Path | Run,
    to: str | Path,
    *,
    checkpoint: CheckpointName = "best",
    name: str = "",
    authors: str = "",
    link: str = "",
    force: bool = False,
    push_to_hub: str = "",
    progress: Progress | None = None,
) -> ExportResult:
    """Export the weights of a run, a model card and leaderboard records.

    Args:
        run: the run or its directory.
        to: output folder, written atomically.
        checkpoint: the ``best`` or the ``last`` epoch. Accuracies are included only if
            they were measured on these weights.
        name: name of the model; derived from the run if empty.
        authors: for the card and the records.
        link: URL of a paper or project page.
        force: replace an earlier export at ``to``.
        push_to_hub: ``OWNER/NAME`` of a Hugging Face repository to upload to; no upload if empty.
        progress: where to show progress and the list of uploaded files.
    """
    progress, run = progress or SilentProgress(), run if isinstance(run, Run) else Run(run)
    folder = Path(to).expanduser()
    if checkpoint not in CHECKPOINT_NAMES:
        raise UserError(
            f"--which must be one of {', '.join(CHECKPOINT_NAMES)}, but got {checkpoint!r}"
        )
    if push_to_hub:
        check_repository_name(push_to_hub)
    check_target_folder(folder, force)
    credit = ModelCredit(name or default_model_name(run), authors, link)
    with lock_folder(folder, progress), atomic_write_folder(folder) as temporary:
        check_target_folder(folder, force)  # another export may have been waited for
        facts = write_export(temporary, run, checkpoint, credit, progress)
        files = sorted(
            p.relative_to(temporary).as_posix() for p in temporary.rglob("*") if p.is_file()
        )
    address = push_folder(folder, push_to_hub, progress) if push_to_hub else ""
    omitted = tuple(r.omitted_reason for r in facts.records if r.omitted_reason)
    sha256 = str(facts.description["weights_sha256"])
    return ExportResult(folder, tuple(files), sha256, omitted, facts.verified.warnings, address)


def write_export(
    folder: Path, run: Run, which: CheckpointName, credit: ModelCredit, progress: Progress
) -> ExportContent:
    """Writes every file of an export."""
    task = progress.add_task(f"export: {run.path.name}", 4)
    results = RunResults(run, run.path.name)
    model = load_run_model(run, which)
    sha256 = write_weights(folder, model)
    source = copy_model_source(folder, results.spec.model)
    task.advance(note="numbers")
    verified = read_verified_results(results, content_digest(model.state_dict()), progress)
    classes = class_names(results.spec.dataset, model.num_classes, verified)
    spec = results.spec
    facts = write_description(
        folder, model, spec.model_args, sha256, name=spec.model, classes=classes
    )
    task.advance(note="records")
    records = [
        *autoattack_records(results, verified, credit),
        *corruption_records(results, verified, credit),
    ]
    for record in records:
        write_leaderboard_record(folder / record.path, record.content)
    task.advance(note="card")
    parameters = sum(p.numel() for p in model.parameters())
    content = ExportContent(results, which, credit, facts, parameters, source, verified, records)
    write_text(folder / "README.md", render_model_card(content))
    task.advance()
    task.close()
    return content


def write_leaderboard_record(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_target_folder(folder: Path, force: bool) -> None:
    """Raise unless the folder is new, empty or, with ``force``, an earlier export."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UserError(f"--to must be valid UTF-8, but got {str(folder)!r}") from None
    if folder.resolve() == Path.cwd():  # it would be moved from under the command
        raise UserError("--to must not be the current directory; choose a folder in it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / DESCRIPTION_FILE).is_file():
        raise UserError(f"--to {folder} exists and is not an export; choose a new or empty folder")
    if not force:
        raise UserError(
            f"--to {folder} already contains an export; choose another folder or pass --force"
        )


def default_model_name(run: Run) -> str:
    spec = run.spec
    model = Path(spec.model_name.replace(":", "/")).name
    return f"{model} {spec.recipe.objective.name} {spec.dataset.partition(':')[0]}"


def class_names(dataset: str, count: int, verified: VerifiedResults) -> tuple[str, ...]:
    """Class names: from a record, else from the dataset if available."""
    for evaluation in verified.evaluations:
        names = evaluation.metadata.get("class_names")
        if evaluation.dataset == dataset and isinstance(names, list) and len(names) == count:
            return tuple(map(str, names))
    try:
        names = load_dataset(dataset).classes
    except (ButtressError, OSError):
        return ()
    return tuple(names) if len(names) == count else ()
