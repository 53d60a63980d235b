"""Handling of Ctrl-C: deferred, or with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from buttress.system.interrupt import defer_interrupt, force_exit_on_interrupt


@pytest.fixture(autouse=True)
def answered() -> Iterator[None]:
    """As in a terminal, also where the tests run in the background, which ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_is_held_is_answered_behind_the_block() -> None:
    done: list[str] = []

    def block() -> None:
        with defer_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_answered_though_the_block_fails() -> None:
    def block() -> None:
        with defer_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            raise ValueError("this comes second")

    with pytest.raises(KeyboardInterrupt):
        block()


def test_a_block_without_ctrl_c_raises_its_own() -> None:
    with pytest.raises(ValueError, match="own"), defer_interrupt():
        raise ValueError("own")


def test_where_it_is_ignored_it_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with defer_interrupt(), force_exit_on_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


SWALLOWED = """
import os, signal, time
from buttress.system import interrupt
interrupt.SHUTDOWN_SECONDS = 0.5
signal.signal(signal.SIGINT, signal.default_int_handler)
with interrupt.force_exit_on_interrupt():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    time.sleep({seconds})
print("over")
time.sleep(1)
print("alive")
"""


def run(seconds: float) -> subprocess.CompletedProcess[str]:
    args = [sys.executable, "-c", SWALLOWED.format(seconds=seconds)]
    return subprocess.run(args, capture_output=True, text=True, timeout=60)


def test_what_does_not_end_is_ended_and_says_where_it_was() -> None:
    done = run(seconds=50)
    assert done.returncode == 1
    assert "over" not in done.stdout
    assert "most recent call first" in done.stderr


def test_what_ends_by_itself_is_left_alone() -> None:
    done = run(seconds=0)
    assert done.stdout.split() == ["over", "alive"]
    assert done.returncode == 0
