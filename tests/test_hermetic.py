"""A test run sees an empty home, an empty cache and no network; so do the processes it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from buttress.system.files import cache_dir

CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"


def test_the_cache_is_empty_and_not_the_users() -> None:
    assert str(cache_dir()) != os.environ["TESTS_USER_CACHE"]
    assert cache_dir().is_relative_to(Path.home())
    assert "buttress-test-home-" in str(Path.home())


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenette"])
def test_no_downloaded_dataset_is_in_it(name: str) -> None:
    assert not (cache_dir() / name).exists()


def test_no_connection_leaves_this_machine() -> None:
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    with pytest.raises(OSError, match="no network"):
        socket.getaddrinfo("example.org", 443)


def test_connections_within_this_machine_work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_child_processes_have_no_network_either() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT], capture_output=True, text=True, check=False
    )
    assert "tests have no network" in done.stderr
