"""Several processes that train one model: `--devices n` starts them, torchrun brings its own.

The process that was asked is the first; it starts the others and shows what happens. If one of
them dies, all end, and the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from buttress.errors import RunError, UserError
from buttress.interrupt import insisted

NAMES = ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE")
SECONDS_TO_END = 60.0


def is_launched() -> bool:
    """Whether torchrun, or a first process of ours, has started this process."""
    return "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process, of several or alone, is the one that writes and speaks."""
    return not is_launched() or os.environ.get("RANK", os.environ["LOCAL_RANK"]) == "0"


def make_fabric(device: str, devices: int, precision: str) -> Fabric:
    """Where training runs: one device, or one process for each of several."""
    if not is_launched():
        try:
            return Fabric(accelerator=device, devices=1, precision=precision)
        except (ValueError, RuntimeError) as error:  # of no such device, or none here
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"the device {device!r} cannot be used here: {reason}") from None
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_WORLD_SIZE", devices))
    # Statistics of BatchNorm are computed over all processes, so there is nothing to broadcast.
    strategy = DDPStrategy(**{_buffer_sync_argument(): False})
    fabric = Fabric(
        accelerator=device,
        devices=local,
        num_nodes=max(1, world // local),
        strategy=strategy,
        precision=precision,
    )
    fabric.launch()
    return fabric


def _buffer_sync_argument() -> str:
    """Name of DDP's switch for the broadcast of buffers before each forward pass.

    Recent versions of torch call it ``forward_sync_buffers`` and warn about the older name.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


@contextlib.contextmanager
def ranks(out: Path, device: str, devices: int) -> Iterator[None]:
    """The other processes of a run whose ``run.json`` lies in ``out``, while this one trains."""
    if devices == 1 or is_launched():
        yield
        return
    kept = {name: os.environ.get(name) for name in NAMES}
    threads = torch.get_num_threads()
    each = max(1, threads // devices)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0"}
    place["WORLD_SIZE"] = str(devices)
    others = [_start(out, device, rank, each, place) for rank in range(1, devices)]
    os.environ.update({**place, "LOCAL_RANK": "0", "RANK": "0"})
    torch.set_num_threads(each)
    with insisted():
        try:
            yield
            for process, log in others:
                if process.wait(SECONDS_TO_END):
                    raise RunError(_died(process.returncode, log))
        except Exception as error:
            for process, log in others:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)  # the others notice that a connection is lost, a moment later
                if process.poll():
                    raise RunError(_died(process.returncode, log)) from error
            raise
        finally:
            for process, log in others:
                process.kill()
                process.wait()
                log.close()
            if distributed.is_initialized():
                distributed.destroy_process_group()
            torch.set_num_threads(threads)
            for name, value in kept.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _start(
    out: Path, device: str, rank: int, threads: int, place: dict[str, str]
) -> tuple[subprocess.Popen[bytes], tempfile._TemporaryFileWrapper[bytes]]:
    log = tempfile.NamedTemporaryFile(suffix=f"-rank-{rank}.log")  # noqa: SIM115 - closed by `ranks`
    own = {"LOCAL_RANK": str(rank), "RANK": str(rank), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "buttress.training.rank", str(out), device]
    env = {**os.environ, **place, **own, "LOCAL_WORLD_SIZE": place["WORLD_SIZE"]}
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    return process, log


def _died(code: int, log: tempfile._TemporaryFileWrapper[bytes]) -> str:
    words = Path(log.name).read_text(errors="replace").strip().splitlines()
    said = f": {words[-1]}" if words else ""
    return (
        f"one of the training processes ended with code {code}{said}; the same command goes on "
        "from the last checkpoint"
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
