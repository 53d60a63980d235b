"""Write the weights of a model and its description, to be loaded without pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

from buttress import __version__
from buttress.errors import RunError
from buttress.models import Classifier
from buttress.models.loading.checkpoint import content_digest
from buttress.models.loading.load import load_weights
from buttress.models.loading.run import load_run_spec, read_run_checkpoint
from buttress.results.model_code import is_function_name, read_model_code
from buttress.results.run import CheckpointName, Run
from buttress.results.run_spec import RunSpec
from buttress.system.files import write_bytes, write_text
from buttress.training.train import build_model

WEIGHTS_FILE, DESCRIPTION_FILE = "model.safetensors", "buttress.json"


def load_run_model(run: Run, checkpoint: CheckpointName) -> Classifier:
    """The model of a run with the weights of one of its checkpoints, in eval mode."""
    model = build_model(load_run_spec(run))
    load_weights(model, read_run_checkpoint(run, checkpoint), run.checkpoint(checkpoint))
    return model.eval()


def write_weights(folder: Path, model: Classifier) -> str:
    """Write all tensors, with those of the normalization; read the file back and compare.

    Returns:
        The SHA-256 of the file.
    """
    # Copies, because the format refuses tensors that share memory, as tied weights do.
    tensors = {n: t.detach().cpu().clone().contiguous() for n, t in model.state_dict().items()}
    path = folder / WEIGHTS_FILE
    write_bytes(path, save(tensors, metadata={"format": "pt"}))
    if content_digest(load_file(path)) != content_digest(tensors):
        raise RunError(f"{path} differs from what was written; check the disk")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_description(
    folder: Path, model: Classifier, spec: RunSpec, classes: tuple[str, ...], sha256: str
) -> dict[str, Any]:
    """Write ``buttress.json``, with which the folder can be loaded by its path."""
    content = {
        "model": exported_model_name(spec.model),
        "num_classes": model.num_classes,
        "image_size": model.image_size,
        "in_channels": model.in_channels,
        "mean": model.normalize.mean.flatten().tolist(),
        "std": model.normalize.std.flatten().tolist(),
        "model_args": spec.model_args,
        "classes": list(classes),
        "weights_sha256": sha256,
        "version": __version__,
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
