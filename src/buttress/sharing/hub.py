"""Uploading an exported folder to the Hugging Face hub; only ever because it was asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from buttress.errors import RunError, UserError
from buttress.progress import Progress

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Hub(Protocol):
    """The part of ``huggingface_hub.HfApi`` that is used."""

    def create_repo(self, repo_id: str, *, repo_type: str, exist_ok: bool) -> object: ...

    def upload_folder(
        self, *, repo_id: str, repo_type: str, folder_path: str, commit_message: str
    ) -> object: ...


def check_repository(name: str) -> str:
    if not REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        raise UserError(f"a repository is written OWNER/NAME, but got {name!r}")
    return name


def push(folder: Path, repository: str, progress: Progress) -> str:
    """Uploads every file of a folder, after saying which; the address it is at."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    lines = [f"  {p.relative_to(folder).as_posix()}  {p.stat().st_size:,} bytes" for p in files]
    progress.log(
        "\n".join(
            [f"uploading to {repository} on the Hugging Face hub (made public if new):", *lines]
        )
    )
    try:
        hub = connect()
        hub.create_repo(repository, repo_type="model", exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            repo_type="model",
            folder_path=str(folder),
            commit_message="Exported by Buttress",
        )
    except Exception as error:  # the network, the account and the hub fail in many ways
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunError(
            f"the upload to {repository} failed: {reason}. {folder} is whole; log in with "
            "`hf auth login`, then run the same command with --force"
        ) from error
    return f"https://huggingface.co/{repository}"


def connect() -> Hub:
    from huggingface_hub import HfApi

    return HfApi()
