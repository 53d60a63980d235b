"""Writes a tiny ONNX file by hand: flatten, then a linear layer. Only its reader is then needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

Field = tuple[int, "int | bytes | str"]


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append((value & 0x7F) | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def message(*fields: Field) -> bytes:
    """A protobuf message: whole numbers, and everything else with its length before it."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(raw)) + raw
    return out


def _value(name: str, *lengths: int | str) -> bytes:
    sizes = [(1, message((1, n) if isinstance(n, int) else (2, n))) for n in lengths]
    tensor = message((1, 1), (2, message(*sizes)))  # float
    return message((1, name), (2, message((1, tensor))))


def _tensor(name: str, values: np.ndarray) -> bytes:
    dims: list[Field] = [(1, int(n)) for n in values.shape]
    return message(*dims, (2, 1), (8, name), (9, values.astype("<f4").tobytes()))


def write_onnx(
    path: Path, weight: np.ndarray, bias: np.ndarray, image: tuple[int, int, int],
    rows: int | str = "n",
) -> Path:  # fmt: skip
    """Logits ``x.flatten(1) @ weight + bias`` for images of a shape."""
    flatten = message((1, "x"), (2, "flat"), (4, "Flatten"))
    linear = message((1, "flat"), (1, "w"), (1, "b"), (2, "logits"), (4, "Gemm"))
    graph = message(
        (1, flatten), (1, linear), (2, "net"), (5, _tensor("w", weight)), (5, _tensor("b", bias)),
        (11, _value("x", rows, *image)), (12, _value("logits", rows, len(bias))),
    )  # fmt: skip
    path.write_bytes(message((1, 8), (7, graph), (8, message((1, ""), (2, 13)))))
    return path
