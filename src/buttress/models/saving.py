"""Write a model to a folder that `load_model` reads without pickle, and to the Hugging Face hub.

The hub's own `ModelHubMixin` saves and uploads, so that models have ``save_pretrained`` and
``push_to_hub`` as everywhere; the files are those of `buttress export`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buttress.errors import RunError, UserError
from buttress.models.loading.checkpoint import content_digest
from buttress.models.loading.folder import DESCRIPTION_FILE, TIMM_CONFIG_FILE, WEIGHT_FILES
from buttress.models.loading.load import load_model
from buttress.results.model_code import is_function_name, read_model_code
from buttress.results.run import provenance
from buttress.system.files import write_bytes, write_text

if TYPE_CHECKING:
    from huggingface_hub import ModelHubMixin

    from buttress.models.core import Classifier

WEIGHTS_FILE = WEIGHT_FILES[0]
CARD_TEMPLATE = """---
{{ card_data }}
---

An image classifier saved by Buttress: images in [0, 1], logits out, normalization inside.

```python
import buttress as bt

model = bt.from_pretrained("OWNER/NAME")  # this repository, or a folder with its files
```

No accuracy is stated here, because none was measured; `buttress export` writes a card with
robust accuracies and their intervals for a trained run.
"""


def round_to_half(model: Classifier) -> None:
    """Round weights of two or more dimensions to what half precision can store, in place."""
    for parameter in model.net.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.half().to(parameter.dtype)


def write_weights(folder: Path, model: Classifier, *, half: bool = False) -> str:
    """Write all tensors, with those of the normalization; read the file back and compare.

    With ``half`` weights of two or more dimensions are stored in half precision, which loses
    nothing after `round_to_half`.

    Returns:
        The SHA-256 of the file.
    """
    from safetensors.torch import load_file, save

    # Copies, because the format refuses tensors that share memory, as tied weights do.
    tensors = {n: t.detach().cpu().clone().contiguous() for n, t in model.state_dict().items()}
    if half:
        matrices = {f"net.{name}" for name, p in model.net.named_parameters() if p.ndim > 1}
        tensors = {n: t.half() if n in matrices else t for n, t in tensors.items()}
    path = folder / WEIGHTS_FILE
    write_bytes(path, save(tensors, metadata={"format": "pt"}))
    if content_digest(load_file(path)) != content_digest(tensors):
        raise RunError(f"{path} differs from what was written; check the disk")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_description(
    folder: Path,
    model: Classifier,
    model_args: Mapping[str, Any],
    sha256: str,
    *,
    name: str = "",
    classes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Write ``buttress.json``, with which the folder can be loaded by its path."""
    content = {
        "model": exported_model_name(name or model.name),
        "num_classes": model.num_classes,
        "image_size": model.image_size,
        "in_channels": model.in_channels,
        "mean": model.normalize.mean.flatten().tolist(),
        "std": model.normalize.std.flatten().tolist(),
        "model_args": dict(model_args),
        "classes": list(classes),
        "weights_sha256": sha256,
        "version": provenance()["versions"]["buttress"],
    }
    write_text(folder / DESCRIPTION_FILE, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content


def copy_model_source(folder: Path, name: str) -> str:
    """Copy the Python files of a custom model to the export; return the first's name or empty."""
    if not is_function_name(name):
        return ""
    code = read_model_code(name)
    for file, body in code.files.items():
        write_bytes(folder / file, body)
    return code.file.name


def exported_model_name(name: str) -> str:
    """The name of a model; a Python file is named as it lies in the exported folder."""
    if not is_function_name(name):
        return name
    location, _, function = name.rpartition(":")
    return f"{Path(location).name}:{function}"


def save_pretrained(model: Classifier, folder: str | Path) -> None:
    """Write weights, description and a short card to a folder."""
    _check_has_name(model)
    _hub_model_class()(model).save_pretrained(folder)


def push_to_hub(
    model: Classifier, repository: str, *, private: bool | None, token: str | None, message: str
) -> str:
    """Upload what `save_pretrained` writes to OWNER/NAME; return the address of the commit."""
    _check_has_name(model)
    hub_model = _hub_model_class()(model)
    return str(
        hub_model.push_to_hub(repository, private=private, token=token, commit_message=message)
    )


def from_pretrained(
    source: str | Path, *, revision: str | None = None, device: str = "cpu"
) -> Classifier:
    """Load a model from OWNER/NAME on the Hugging Face hub, or from a folder with its files.

    Args:
        source: ``OWNER/NAME``, or a folder that `save_pretrained` or ``buttress export`` wrote.
        revision: a branch, tag or commit of the repository.
        device: where the model goes.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return load_model(folder, device=device)
    name = str(source).removeprefix("hf:")
    return load_model(f"hf:{name}" + (f"@{revision}" if revision else ""), device=device)


def _check_has_name(model: Classifier) -> None:
    """Raise unless the architecture can be built again from its name."""
    from buttress.models.core import is_known

    name = model.name
    if not (is_known(name) or name.startswith("timm:") or is_function_name(name)):
        raise UserError(
            f"only a model that is made by name can be saved, but got a module {name!r}; put the "
            "function that builds it into a file and load it with "
            "bt.load_model(weights, model='FILE.py:FUNCTION')"
        )


@cache
def _hub_model_class() -> type[ModelHubMixin]:
    """The hub's mixin around a classifier; it is imported when it is needed."""
    from huggingface_hub import ModelHubMixin

    class HubModel(
        ModelHubMixin,
        library_name="buttress",
        tags=["adversarial-robustness", "image-classification"],
        pipeline_tag="image-classification",
        model_card_template=CARD_TEMPLATE,
    ):
        def __init__(self, model: Classifier) -> None:
            self.model = model

        def _save_pretrained(self, save_directory: Path) -> None:
            model = self.model
            sha256 = write_weights(save_directory, model)
            copy_model_source(save_directory, model.name)
            write_description(save_directory, model, model.options, sha256)
            config = {"library_name": "buttress", "model": exported_model_name(model.name)}
            write_text(save_directory / TIMM_CONFIG_FILE, json.dumps(config, indent=1) + "\n")

    return HubModel
