"""Devices by name, to say roughly what a study would take where it is not yet run.

Peaks are the makers' figures in float32 without sparsity. The share of the peak that training and
attacks of small images reach is a guess of ours; a plan made from it says so.
"""

from __future__ import annotations

from typing import NamedTuple

from buttress.errors import UnknownName
from buttress.registry import canonical


class Device(NamedTuple):
    """A device: multiplications and additions per second, and the share that is reached."""

    name: str
    peak: float  # FLOP/s
    efficiency: float = 0.35

    @property
    def flops(self) -> float:
        return self.peak * self.efficiency


DEVICES = {
    canonical(device.name): device
    for device in (
        Device("cpu-core", 96e9, 0.3),  # 3 GHz, two 8-wide fused products per cycle
        Device("rtx2080ti", 13.4e12),
        Device("v100", 15.7e12),
        Device("a100", 19.5e12),
        Device("rtx3090", 35.6e12),
        Device("a6000", 38.7e12),
        Device("h100", 67e12),
        Device("rtx4090", 82.6e12),
    )
}


def device_named(name: str) -> Device:
    if canonical(name) not in DEVICES:
        known = ", ".join(device.name for device in DEVICES.values())
        raise UnknownName(f"there is no device {name!r}; known are {known}")
    return DEVICES[canonical(name)]
