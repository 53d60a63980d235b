"""Models in ONNX files: they provide no gradients, so only black-box attacks apply."""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.core import Classifier
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource
from buttress.models.loading.load import wrap_network

NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}


class OnnxModel(nn.Module):
    """Images (N, C, H, W) -> logits, by onnxruntime on the CPU."""

    has_gradients = False  # what attacks ask for
    digest: Tensor

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        content = _read_file(path)
        # Records name a model by its tensors; this one stands for the weights in the file.
        file_digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8).copy()
        self.register_buffer("digest", torch.from_numpy(file_digest))
        self._session, self._process = _create_session(path), os.getpid()
        self.input, self.output = _image_input_and_logits(self._session, path)
        self.fixed_batch_size = _fixed_length(self.input.shape[0])

    @property
    def channels(self) -> int | None:
        return _fixed_length(self.input.shape[1])

    @property
    def image_size(self) -> int | None:
        return _fixed_length(self.input.shape[2])

    def forward(self, x: Tensor) -> Tensor:
        values = x.detach().cpu().numpy().astype(NUMPY_TYPES[self.input.type], copy=False)
        rows = len(values) if self.fixed_batch_size is None else self.fixed_batch_size
        logits = self._run_in_batches(values, max(rows, 1))
        return torch.from_numpy(np.ascontiguousarray(logits)).to(x)

    def _run_in_batches(self, values: Any, rows: int) -> Any:
        """Run in batches; for a fixed batch size the last batch is padded."""
        pieces = []
        for start in range(0, max(len(values), 1), rows):
            piece = values[start : start + rows]
            padded = np.zeros((rows, *values.shape[1:]), values.dtype)
            padded[: len(piece)] = piece
            pieces.append(self._run(padded)[: len(piece)])
        return np.concatenate(pieces)

    def _run(self, values: Any) -> Any:
        if self._process != os.getpid():  # the threads of a session do not exist after a fork
            self._session, self._process = _create_session(self.path), os.getpid()
        try:
            return self._session.run([self.output.name], {self.input.name: values})[0]
        except Exception as error:  # onnxruntime has a kind of error for each of its own
            raise UserError(
                f"{self.path} does not take images of shape {values.shape[1:]}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None


def _create_session(path: Path) -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise UserError(
            f"{path} needs onnxruntime; install it with `pip install buttress[onnx]`"
        ) from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise UserError(
            f"{path} is damaged or not an ONNX model: {' '.join(str(error).split())[:200]}"
        ) from None


def _image_input_and_logits(session: Any, path: Path) -> tuple[Any, Any]:
    """The one input that takes images and the one output that is logits."""
    weights = {w.name for w in session.get_overridable_initializers()}
    inputs = [i for i in session.get_inputs() if i.name not in weights]
    outputs = [o for o in session.get_outputs() if len(o.shape or ()) == 2]
    if len(inputs) != 1 or len(inputs[0].shape or ()) != 4 or inputs[0].type not in NUMPY_TYPES:
        given_tensors = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise UserError(f"{path} must take one float input (N, C, H, W), but takes {given_tensors}")
    if len(outputs) != 1:
        given_tensors = ", ".join(f"{o.name} {o.shape}" for o in session.get_outputs())
        raise UserError(f"{path} must return one output (N, classes), but returns {given_tensors}")
    _, channels, _, last = inputs[0].shape
    if _fixed_length(channels) not in (None, 1, 3, 4) and _fixed_length(last) in (1, 3, 4):
        raise UserError(
            f"{path} takes images of shape {inputs[0].shape} (channels last); export it with "
            "shape (N, C, H, W)"
        )
    return inputs[0], outputs[0]


def _fixed_length(length: Any) -> int | None:
    return length if isinstance(length, int) else None


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


NO_GRADIENTS_WARNING = (
    "the model provides no gradients: only black-box attacks were run, so robust accuracy "
    "may be overestimated"
)


@SOURCES.register("onnx", form="FILE.onnx")
class OnnxSource(ModelSource):
    """A model in an ONNX file, for black-box attacks; it needs the extra ``onnx``."""

    def matches(self, name: str) -> bool:
        return Path(name).is_file() and Path(name).suffix.lower() == ".onnx"

    def open(self, name: str, request: ModelRequest) -> Classifier:
        request.reject_model_argument(name)
        net = OnnxModel(Path(name))
        default_shape = dict(request.default_shape)
        default_shape["in_channels"] = net.channels or default_shape["in_channels"]
        default_shape["image_size"] = net.image_size or default_shape["image_size"]
        model = wrap_network(net, replace(request, default_shape=default_shape))
        model.name, model.warnings = name, (NO_GRADIENTS_WARNING,)
        return model
