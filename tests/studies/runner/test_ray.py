"""A Ray cluster of two nodes on this machine: one is killed, the driver too; nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from buttress.results.study_result import StudyTableRow
from buttress.studies import RunJob, answer_study, expand_study
from buttress.studies.jobs import read_statuses
from buttress.studies.runner import run_jobs
from buttress.system.progress import SilentProgress
from small_study import content, longer, small_study, trained_epochs, works

pytestmark = pytest.mark.filterwarnings("ignore")
CODE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from small_study import longer, works
from buttress.system.progress import SilentProgress
from buttress.studies.runner.run import RunnerOptions, run_shard
seeds, epochs = int(sys.argv[4]), int(sys.argv[5])
jobs = works(Path(sys.argv[1]), seeds=list(range(seeds)), **longer(epochs))
options = RunnerOptions(backend="ray", device="cpu", ray_address=sys.argv[3])
print(run_shard(jobs, options, SilentProgress()))
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "include_dashboard": False,
            "object_store_memory": 100_000_000,
        },
    )
    yield made
    made.shutdown()


@dataclass(frozen=True)
class Size:
    """How many runs of how many epochs, and after how many the driver and the node are killed."""

    runs: int
    epochs: int
    driver_dies: int
    node_dies: int

    def jobs(self, root: Path) -> list[RunJob]:
        return works(root, seeds=list(range(self.runs)), **longer(self.epochs))

    def table(self, root: Path) -> tuple[StudyTableRow, ...]:
        """The table of the study's answer: one line for all seeds, with its intervals."""
        study = small_study(seeds=list(range(self.runs)), **longer(self.epochs))
        result = answer_study(expand_study(study, "smoke"), root)
        assert (result.finished_runs, result.failed_runs) == (self.runs, {})
        return result.rows


SMALL = Size(runs=4, epochs=1, driver_dies=1, node_dies=2)
LARGE = Size(runs=12, epochs=3, driver_dies=2, node_dies=4)


def driver(root: Path, address: str, size: Size) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parents[2])
    arguments = [str(root), here, address, str(size.runs), str(size.epochs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


def wait_for(count: int, jobs: list[RunJob], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if sum(run.state == "done" for run in read_statuses(jobs)) >= count:
            return
        time.sleep(0.2)
    raise AssertionError(f"{count} runs were not done in time")


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=repr)
def test_a_node_and_the_driver_die_and_every_run_is_done_once(
    cluster: Any, tmp_path: Path, size: Size
) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
    root = tmp_path / "ray"
    jobs = size.jobs(root)
    first = driver(root, cluster.address, size)
    wait_for(size.driver_dies, jobs)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = driver(root, cluster.address, size)
    wait_for(size.node_dies, jobs)
    cluster.remove_node(node, allow_graceful=False)
    out, err = second.communicate(timeout=900)
    assert out.strip().splitlines()[-1:] == [b"[]"], err.decode()[-2000:]
    assert [run.state for run in read_statuses(jobs)] == ["done"] * size.runs
    assert all(trained_epochs(job) == list(range(1, size.epochs + 1)) for job in jobs)
    assert len(list((root / "runs").iterdir())) == size.runs  # one folder each, and no lock
    local = size.jobs(tmp_path / "local")
    assert run_jobs(local, workers=1, device="cpu", progress=SilentProgress()) == []
    for here, there in zip(local, jobs, strict=True):
        assert here.key == there.key
        assert content(here) == content(there)
    assert size.table(tmp_path / "local") == size.table(root)
