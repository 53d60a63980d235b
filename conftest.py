"""Gives a test run empty user directories and no network, before anything else is imported.

What a machine happens to have (downloaded datasets, trained networks, settings, credentials) then
cannot decide a test. Installers are not affected: they run before the tests.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

HERMETIC = Path(__file__).parent / "tests" / "hermetic"
PERSONAL = ("BUTTRESS_", "HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TORCH_HOME", "TORCHINDUCTOR_",
            "TRITON_", "MPLCONFIGDIR", "WANDB_", "MLFLOW_", "RAY_", "XDG_")  # fmt: skip


def user_cache() -> str:
    """The cache of the user who started the tests; only the fixture `cifar10` reads it."""
    if own := os.environ.get("BUTTRESS_CACHE"):
        return own
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(Path(shared) / "buttress")


def enter_empty_home() -> None:
    """Every process of the run gets a home of its own; workers remember the user's cache."""
    cache = os.environ.get("TESTS_USER_CACHE") or user_cache()
    home = Path(tempfile.mkdtemp(prefix="buttress-test-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith(PERSONAL)]:
        del os.environ[name]
    os.environ.update(
        HOME=str(home),
        USERPROFILE=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        XDG_CONFIG_HOME=str(home / "config"),
        XDG_DATA_HOME=str(home / "data"),
        XDG_STATE_HOME=str(home / "state"),
        TESTS_USER_CACHE=cache,
    )


def leave_network() -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(HERMETIC) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERMETIC), *filter(None, paths)])
    sys.path.insert(0, str(HERMETIC))
    import no_network

    no_network.install()


def heed_interrupts() -> None:
    """A shell makes what it starts in the background ignore SIGINT, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


enter_empty_home()
leave_network()
heed_interrupts()
