"""Export all models of the zoo, and upload them to the Hugging Face Hub."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from buttress.errors import UserError
from buttress.export.export import check_target_folder, push_folder
from buttress.models.loading.zoo import list_zoo, zoo_folder
from buttress.system.files import atomic_write_folder
from buttress.system.locks import lock_folder
from buttress.system.progress import Progress, SilentProgress

OWNER_PATTERN = re.compile(r"[A-Za-z0-9][\w-]*")


def export_zoo(
    to: str | Path, *, owner: str = "", force: bool = False, progress: Progress | None = None
) -> dict[Path, str]:
    """Copy every model of the zoo to ``to/NAME``, weights, description and card.

    Args:
        to: output folder; each model's folder is written atomically.
        owner: account on the Hugging Face Hub; each model is uploaded to ``OWNER/NAME``. No
            upload if empty.
        force: replace earlier exports.
        progress: where to show progress and the lists of uploaded files.

    Returns:
        The folder of each model, and where it was uploaded to.
    """
    if owner and not OWNER_PATTERN.fullmatch(owner):
        raise UserError(f"--push-to-hub must be OWNER for the zoo, but got {owner!r}")
    progress = progress or SilentProgress()
    targets = {Path(to).expanduser() / zoo_folder(name).name: name for name in list_zoo()}
    for folder in targets:
        check_target_folder(folder, force)
    for folder, name in targets.items():
        with lock_folder(folder, progress), atomic_write_folder(folder) as temporary:
            shutil.copytree(zoo_folder(name), temporary, dirs_exist_ok=True)
    return {
        folder: push_folder(folder, f"{owner}/{folder.name}", progress) if owner else ""
        for folder in targets
    }
