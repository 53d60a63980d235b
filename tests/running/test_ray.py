"""A Ray cluster of two nodes on this machine: one is killed, the driver too; nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buttress.progress import Silent
from buttress.records.answer import Line
from buttress.running import run_all
from buttress.study import answer
from buttress.study.survey import survey

from small_study import content, longer, small_study, trained_epochs, works  # isort: skip

pytest.importorskip("ray", reason="Ray is not installed: pip install 'buttress[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EPOCHS = 3
CODE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from small_study import longer, works
from buttress.progress import Silent
from buttress.running.launch import Launch, launch
jobs = works(Path(sys.argv[1]), seeds=list(range(12)), **longer(int(sys.argv[4])))
print(launch(jobs, Launch(on="ray", device="cpu", address=sys.argv[3]), Silent()))
"""


@pytest.fixture
def cluster() -> Iterator[object]:
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


def driver(root: Path, address: str) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CODE, str(root), here, address, str(EPOCHS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def wait_for(states: int, root: Path, seconds: float = 400) -> None:
    jobs = works(root, seeds=list(range(12)), **longer(EPOCHS))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if sum(found.state == "done" for found in survey(jobs)) >= states:
            return
        time.sleep(0.2)
    raise AssertionError(f"{states} runs were not done in time")


def test_a_node_and_the_driver_die_and_every_run_is_done_once(
    cluster: object, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)  # type: ignore[attr-defined]
    root, address = tmp_path / "ray", cluster.address  # type: ignore[attr-defined]
    first = driver(root, address)
    wait_for(2, root)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = driver(root, address)
    wait_for(4, root)
    cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]
    out, err = second.communicate(timeout=900)
    assert out.strip().splitlines()[-1:] == [b"[]"], err.decode()[-2000:]
    jobs = works(root, seeds=list(range(12)), **longer(EPOCHS))
    assert [found.state for found in survey(jobs)] == ["done"] * 12
    assert all(trained_epochs(job) == list(range(1, EPOCHS + 1)) for job in jobs)
    assert len(list((root / "runs").iterdir())) == 12  # one folder each, and no lock
    local = works(tmp_path / "local", seeds=list(range(12)), **longer(EPOCHS))
    assert run_all(local, workers=1, device="cpu", progress=Silent()) == []
    for here, there in zip(local, jobs, strict=True):
        assert here.key == there.key
        assert content(here) == content(there)
    assert lines(tmp_path / "local") == lines(root)


def lines(root: Path) -> tuple[Line, ...]:
    """The table of the study's answer: one line for all seeds, with its intervals."""
    study = small_study(seeds=list(range(12)), **longer(EPOCHS))
    found = answer(study, "smoke", root)
    assert (found.done, found.failed) == (12, {})
    return found.lines
