"""A network in an ONNX file: it answers, but has no gradients, so only black-box attacks apply."""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from buttress.errors import UserError

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


class OnnxNetwork(nn.Module):
    """Images (N, C, H, W) -> logits, by onnxruntime on the processor."""

    gives_gradients = False  # what attacks ask for
    digest: Tensor

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        content = _read(path)
        # Records name a model by its tensors; this one stands for the weights in the file.
        found = np.frombuffer(hashlib.sha256(content).digest(), np.uint8).copy()
        self.register_buffer("digest", torch.from_numpy(found))
        self._session, self._process = _open(path), os.getpid()
        self.input, self.output = _ends(self._session, path)
        self.rows = self.input.shape[0] if isinstance(self.input.shape[0], int) else None

    @property
    def channels(self) -> int | None:
        return _fixed(self.input.shape[1])

    @property
    def image_size(self) -> int | None:
        return _fixed(self.input.shape[2])

    def forward(self, x: Tensor) -> Tensor:
        values = x.detach().cpu().numpy().astype(FLOATS[self.input.type], copy=False)
        rows = len(values) if self.rows is None else self.rows
        logits = self._run_in_pieces(values, max(rows, 1))
        return torch.from_numpy(np.ascontiguousarray(logits)).to(x)

    def _run_in_pieces(self, values: Any, rows: int) -> Any:
        """Where a file is made for a fixed number of images, the last piece is filled up."""
        pieces = []
        for start in range(0, max(len(values), 1), rows):
            piece = values[start : start + rows]
            full = np.zeros((rows, *values.shape[1:]), values.dtype)
            full[: len(piece)] = piece
            pieces.append(self._run(full)[: len(piece)])
        return np.concatenate(pieces)

    def _run(self, values: Any) -> Any:
        if self._process != os.getpid():  # threads of a session do not survive a fork
            self._session, self._process = _open(self.path), os.getpid()
        try:
            return self._session.run([self.output.name], {self.input.name: values})[0]
        except Exception as error:  # onnxruntime has a kind of error for each of its own
            raise UserError(
                f"{self.path} does not take images of shape {values.shape[1:]}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None


def _open(path: Path) -> Any:
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
            f"{path} is damaged or not an ONNX network: {' '.join(str(error).split())[:200]}"
        ) from None


def _ends(session: Any, path: Path) -> tuple[Any, Any]:
    """The one input that takes images and the one output that is logits."""
    weights = {w.name for w in session.get_overridable_initializers()}
    inputs = [i for i in session.get_inputs() if i.name not in weights]
    outputs = [o for o in session.get_outputs() if len(o.shape or ()) == 2]
    if len(inputs) != 1 or len(inputs[0].shape or ()) != 4 or inputs[0].type not in FLOATS:
        came = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise UserError(f"{path} must take one float input (N, C, H, W), but takes {came}")
    if len(outputs) != 1:
        came = ", ".join(f"{o.name} {o.shape}" for o in session.get_outputs())
        raise UserError(f"{path} must return one output (N, classes), but returns {came}")
    _, channels, _, last = inputs[0].shape
    if _fixed(channels) not in (None, 1, 3, 4) and _fixed(last) in (1, 3, 4):
        raise UserError(
            f"{path} takes images as {inputs[0].shape}, channels last; export it as (N, C, H, W)"
        )
    return inputs[0], outputs[0]


def _fixed(length: Any) -> int | None:
    return length if isinstance(length, int) else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
