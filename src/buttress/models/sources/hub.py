"""``hf:OWNER/NAME``: weights on the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from buttress.errors import UserError
from buttress.models.sources.core import SOURCES, Source, Trained, Wanted
from buttress.models.sources.folder import CARD, CONFIG, open_folder

PREFIXES = ("hf:", "hf-hub:", "hf_hub:")  # the last two are timm's
SAFE = ["*.safetensors", "*.safetensors.index.json", CARD, CONFIG]
PICKLED = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


@SOURCES.register("hf", form="hf:OWNER/NAME")
class Hub(Source):
    """A model on the Hugging Face hub (``@REVISION`` after it picks one); no code of it is run."""

    def reads(self, what: str) -> bool:
        return what.startswith(PREFIXES)

    def open(self, what: str, wanted: Wanted) -> Trained:
        return open_folder(get_folder(what), wanted)


def get_folder(what: str) -> Path:
    """The files of a repository in the hub's own cache; safetensors if it has them."""
    name, _, revision = what.partition(":")[2].partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"a model on the hub is written hf:OWNER/NAME, but got {what!r}")
    folder = _download(name, revision or None, SAFE)
    if not list(folder.glob("*.safetensors")):
        folder = _download(name, revision or None, SAFE + PICKLED)
    return folder


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=patterns)
        )
    except Exception as error:  # the hub, the network and the disk each fail in their own way
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"hf:{name} could not be got ({type(error).__name__}: {reason}). Check the name; a "
            "private model needs `hf auth login`. Without a network, run `hf download "
            f"{name} --local-dir DIR` where there is one and give DIR"
        ) from None
