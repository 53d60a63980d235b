"""Distributed training: `--devices n` starts the processes, or torchrun does.

The process of the command is rank 0; it starts the others and shows progress. If one of them dies,
all end, and the same command resumes from the last checkpoint.
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
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from buttress.errors import RunError, UserError
from buttress.system.interrupt import force_exit_on_interrupt

DISTRIBUTED_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "NODE_RANK",
    "RANK",
    "WORLD_SIZE",
)
WORKER_EXIT_TIMEOUT = 60.0
CPU_BATCHNORM_WARNING = (
    "devices={devices} on a CPU: in every pass the processes exchange the statistics of each of "
    "{norms} BatchNorm layers, which takes longer than it saves; use devices=1, and "
    "`study run --workers {devices}` to train several runs at once"
)


def is_distributed_process() -> bool:
    """Whether torchrun, or a first process of ours, has started this process."""
    return "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_rank_zero() -> bool:
    """Whether this process writes files and shows progress (rank 0, or the only one)."""
    return not is_distributed_process() or os.environ.get("RANK", os.environ["LOCAL_RANK"]) == "0"


def devices_warning(model: nn.Module, device: str, devices: int) -> str | None:
    """Why several processes are slower than one for a model on a CPU; None if they are not."""
    norms = sum(isinstance(module, _BatchNorm) for module in model.modules())
    has_accelerator = torch.accelerator.is_available() and device != "cpu"
    if devices == 1 or has_accelerator or not norms:
        return None
    return CPU_BATCHNORM_WARNING.format(devices=devices, norms=norms)


def create_fabric(device: str, devices: int, precision: str) -> Fabric:
    """Create the Fabric: one device, or one process for each of several."""
    if not is_distributed_process():
        try:
            return Fabric(accelerator=device, devices=1, precision=precision)
        except (ValueError, RuntimeError) as error:  # of no such device, or none here
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"device {device!r} is not available: {reason}") from None
    world_size, local_world_size = (
        int(os.environ["WORLD_SIZE"]),
        int(os.environ.get("LOCAL_WORLD_SIZE", devices)),
    )
    # Statistics of BatchNorm are computed over all processes, so there is nothing to broadcast.
    strategy = DDPStrategy(**{_buffer_sync_argument(): False})
    fabric = Fabric(
        accelerator=device,
        devices=local_world_size,
        num_nodes=max(1, world_size // local_world_size),
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
def worker_processes(out: Path, device: str, devices: int) -> Iterator[None]:
    """Start the worker processes of the run in ``out`` while this process trains."""
    if devices == 1 or is_distributed_process():
        yield
        return
    saved_environment = {name: os.environ.get(name) for name in DISTRIBUTED_VARIABLES}
    threads = torch.get_num_threads()
    threads_per_process = max(1, threads // devices)
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0"}
    environment["WORLD_SIZE"] = str(devices)
    workers = [
        _start_worker(out, device, rank, threads_per_process, environment)
        for rank in range(1, devices)
    ]
    os.environ.update({**environment, "LOCAL_RANK": "0", "RANK": "0"})
    torch.set_num_threads(threads_per_process)
    with force_exit_on_interrupt():
        try:
            yield
            for process, log in workers:
                if process.wait(WORKER_EXIT_TIMEOUT):
                    raise RunError(_worker_error(process.returncode, log))
        except Exception as error:
            for process, log in workers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)  # the others notice that a connection is lost, a moment later
                if process.poll():
                    raise RunError(_worker_error(process.returncode, log)) from error
            raise
        finally:
            for process, log in workers:
                process.kill()
                process.wait()
                log.close()
            if distributed.is_initialized():
                distributed.destroy_process_group()
            torch.set_num_threads(threads)
            for name, value in saved_environment.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _start_worker(
    out: Path, device: str, rank: int, threads: int, environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], tempfile._TemporaryFileWrapper[bytes]]:
    log = tempfile.NamedTemporaryFile(suffix=f"-rank-{rank}.log")  # noqa: SIM115 - closed by `worker_processes`
    rank_environment = {"LOCAL_RANK": str(rank), "RANK": str(rank), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "buttress.training.worker", str(out), device]
    env = {
        **os.environ,
        **environment,
        **rank_environment,
        "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"],
    }
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    return process, log


def _worker_error(code: int, log: tempfile._TemporaryFileWrapper[bytes]) -> str:
    lines = Path(log.name).read_text(errors="replace").strip().splitlines()
    last_line = f": {lines[-1]}" if lines else ""
    return (
        f"a training process exited with code {code}{last_line}; run the same command again "
        "to resume from the last checkpoint"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
