"""A made-up accelerator: tensors that say they are not on the CPU, and count what stalls one.

Values live in ordinary CPU tensors. What would make the host wait for a GPU is counted: reading a
number (``.item()``, ``bool(t)``, ``.tolist()``), an output whose shape depends on values
(``nonzero``, indexing with a mask, ``unique``), and copies between host and device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("meta")  # any type but "cpu" that needs no driver
READS = ("_local_scalar_dense", "equal", "is_nonzero")
VALUE_SHAPES = (
    "nonzero",
    "masked_select",
    "unique",
    "unique2",
    "_unique2",
    "unique_dim",
    "bincount",
)
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class DeviceTensor(Tensor):
    """A tensor on the made-up device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held!r})"

    def tolist(self) -> Any:
        SlowDevice.current.count("read", "tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return SlowDevice.current.run(func, args, kwargs or {})


def unwrap(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def wrap(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, Tensor) else value


class SlowDevice(TorchDispatchMode):
    """While active, operations on device tensors are executed and counted."""

    current: SlowDevice

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        SlowDevice.current = self

    def count(self, kind: str, name: str) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and "/buttress/" not in frame.f_code.co_filename:
            frame = frame.f_back
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "a test"
        self.counts[f"{kind}: {name} ({place})"] += 1

    @property
    def stalls(self) -> int:
        return sum(self.counts.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func._schema.name.removeprefix("aten::")
        flat, _ = torch.utils._pytree.tree_flatten((args, kwargs))
        device_args = [a for a in flat if isinstance(a, DeviceTensor)]
        target = kwargs.get("device")
        goes_to_device = target is not None and torch.device(target).type == DEVICE.type
        if not device_args and not goes_to_device:
            return func(*args, **kwargs)
        if device_args:
            self.classify(name, args, flat, target)
        given = tree_map(unwrap, dict(kwargs))
        if target is not None:
            given["device"] = torch.device("cpu")
        result = func(*tree_map(unwrap, args), **given)
        if func._schema.is_mutable and flat and isinstance(args[0], DeviceTensor):
            return args[0] if isinstance(result, Tensor) else tree_map(wrap, result)
        stays = goes_to_device or target is None
        if not device_args and name == "_to_copy":
            self.count("copy", "to device")
        return tree_map(wrap, result) if stays else result

    def classify(self, name: str, args: Any, flat: list[Any], target: Any) -> None:
        """Count an operation on device tensors if it makes the host wait."""
        if name in READS:
            self.count("read", name)
        elif name in VALUE_SHAPES:
            self.count("shape", name)
        elif name in INDEXING:
            masks = [i for i in args[1] if isinstance(i, Tensor) and i.dtype == torch.bool]
            if masks:
                self.count("shape", f"{name} with a mask")
        elif target is not None and torch.device(target).type == "cpu":
            self.count("copy", "to host")
        host = [a for a in flat if isinstance(a, Tensor) and not isinstance(a, DeviceTensor)]
        if any(a.ndim for a in host):
            self.count("copy", f"host tensor in {name}")


def to_device(model: nn.Module) -> nn.Module:
    """Move parameters and buffers of a model to the made-up device."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                held = DeviceTensor(parameter.detach().clone())
                module._parameters[name] = nn.Parameter(held, parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = DeviceTensor(buffer.clone())
    return model
