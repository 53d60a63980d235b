"""Per-sample random numbers, independent of the batch.

Each draw is seeded by (seed, purpose, restart, sample id) alone. Batch size, order, sharding, the
number of workers and the global generator therefore change nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor


def splitmix64(value: Tensor) -> Tensor:
    """The finalizer of splitmix64 on int64, with wrap-around."""
    value = value + _to_signed(0x9E3779B97F4A7C15)
    value = (value ^ logical_shift_right(value, 30)) * _to_signed(0xBF58476D1CE4E5B9)
    value = (value ^ logical_shift_right(value, 27)) * _to_signed(0x94D049BB133111EB)
    return value ^ logical_shift_right(value, 31)


def logical_shift_right(value: Tensor, bits: int) -> Tensor:
    """A right shift that brings in zeros, where torch copies the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def derive_seed(*parts: int | str) -> int:
    """Derive a 64-bit seed from numbers and strings, the same on every machine."""
    text = "\0".join(str(part) for part in parts)
    # Names of files need not be text: their other bytes stand for themselves.
    content = text.encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def make_generator(*parts: int | str) -> torch.Generator:
    """CPU generator for one named purpose."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextlib.contextmanager
def isolated_rng(device: torch.device, *parts: int | str) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python inside, and restore them afterwards.

    For models that draw random numbers: the same call then gives the same result, whatever was
    drawn before, and nothing after it changes.
    """
    seed, devices = derive_seed(*parts), [device] if device.type == "cuda" else []
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - models use this generator
    try:
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            for cuda_device in devices:
                with torch.cuda.device(cuda_device):
                    torch.cuda.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@dataclass(frozen=True)
class SampleRNG:
    """The random streams of a batch of samples for one purpose."""

    seed: int
    purpose: str
    ids: Tensor  # (N,) permanent sample ids
    # That of all draws, if known: tensors of restarts are then not read.
    only_restart: int | None = field(default=None, kw_only=True)

    def draw_normal(self, like: Tensor, restart: int | Tensor = 0) -> Tensor:
        """Standard normal noise of the shape, type and device of ``like`` (N, ...)."""
        return self._draw(like, restart, torch.randn)

    def draw_uniform(self, like: Tensor, restart: int | Tensor = 0) -> Tensor:
        """Uniform noise on [0, 1) of the shape, type and device of ``like`` (N, ...)."""
        return self._draw(like, restart, torch.rand)

    def draw_integers(self, below: int, purpose_suffix: str) -> Tensor:
        """(N,) one integer in [0, below) for each sample, for the use ``purpose_suffix``."""
        return logical_shift_right(self.sample_keys(purpose_suffix), 1) % below

    def draw_fractions(self, count: int, purpose_suffix: str) -> Tensor:
        """(N, count) float64 numbers in [0, 1): each sample has its own splitmix64 sequence."""
        steps = torch.arange(count, device=self.ids.device) * _to_signed(0x9E3779B97F4A7C15)
        return (
            logical_shift_right(
                splitmix64(self.sample_keys(purpose_suffix).unsqueeze(1) + steps), 11
            ).double()
            * 2.0**-53
        )

    def sample_keys(self, draw_id: int | str | Tensor) -> Tensor:
        """(N,) an unrelated 64-bit number for each sample; ``draw_id`` may differ by sample."""
        if isinstance(draw_id, Tensor) and self.only_restart is not None:
            draw_id = self.only_restart
        if not isinstance(draw_id, Tensor):
            return splitmix64(
                splitmix64(self.ids) ^ _to_signed(derive_seed(self.seed, self.purpose, draw_id))
            )
        draw_ids = draw_id.tolist()
        salts = {u: _to_signed(derive_seed(self.seed, self.purpose, u)) for u in set(draw_ids)}
        salt = torch.tensor([salts[u] for u in draw_ids], dtype=torch.int64, device=self.ids.device)
        return splitmix64(splitmix64(self.ids) ^ salt)

    def select(self, rows: Tensor) -> SampleRNG:
        """The streams of some of the samples: a mask or indices."""
        return replace(self, ids=self.ids[rows.to(self.ids.device)])

    def _draw(self, like: Tensor, restart: int | Tensor, sample: Callable[..., Tensor]) -> Tensor:
        # One generator is reseeded per sample: making 128 of them costs 20 times as much.
        seeds = self.sample_keys(restart).tolist()
        noise = torch.empty(like.shape, dtype=like.dtype)
        generator = torch.Generator()
        for row, seed in enumerate(seeds):
            generator.manual_seed(seed)
            sample(like.shape[1:], generator=generator, dtype=like.dtype, out=noise[row])
        return noise.to(like.device)
