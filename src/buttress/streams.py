"""Random numbers that belong to a sample, not to a batch.

Each draw is seeded by (seed, purpose, restart, sample id) alone. Batch size, order, sharding, the
number of workers and the global generator therefore change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    """The finaliser of splitmix64: neighbouring integers become unrelated ones."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_of(*parts: int | str) -> int:
    """A 64-bit seed from any mixture of numbers and words, the same on every machine."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(*parts: int | str) -> torch.Generator:
    """A generator of its own on the CPU for one named purpose."""
    return torch.Generator().manual_seed(seed_of(*parts))


@dataclass(frozen=True)
class Streams:
    """The random streams of a batch of samples for one purpose."""

    seed: int
    purpose: str
    ids: Tensor  # (N,) permanent sample ids

    def normal(self, like: Tensor, restart: int = 0) -> Tensor:
        """Standard normal noise of the shape, type and device of ``like`` (N, ...)."""
        return self._draw(like, restart, torch.randn)

    def uniform(self, like: Tensor, restart: int = 0) -> Tensor:
        """Uniform noise on [0, 1) of the shape, type and device of ``like`` (N, ...)."""
        return self._draw(like, restart, torch.rand)

    def select(self, rows: Tensor) -> Streams:
        """The streams of some of the samples: a mask or indices."""
        return Streams(self.seed, self.purpose, self.ids[rows.to(self.ids.device)])

    def _draw(self, like: Tensor, restart: int, sample: Callable[..., Tensor]) -> Tensor:
        # One generator is reseeded per sample: making 128 of them costs 20 times as much.
        base = seed_of(self.seed, self.purpose, restart)
        noise = torch.empty(like.shape, dtype=like.dtype)
        source = torch.Generator()
        for row, sample_id in enumerate(self.ids.tolist()):
            source.manual_seed(_mix(base ^ _mix(sample_id)))
            sample(like.shape[1:], generator=source, dtype=like.dtype, out=noise[row])
        return noise.to(like.device)
