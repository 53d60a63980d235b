"""Refuses every connection that leaves this machine.

`sitecustomize.py` beside this file installs it in each Python process that a test starts; the
`conftest.py` of the repository installs it in the test process itself.
"""

from __future__ import annotations

import socket
import sys

_is_installed = False


def install() -> None:
    """Adds an audit hook; a second call does nothing."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_refuse_remote)


def _refuse_remote(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect":
        connection, address = args
        assert isinstance(connection, socket.socket)
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return  # a Unix socket
        if connection.type == socket.SOCK_DGRAM:
            return  # sends nothing: Ray asks in this way which address this machine has
        host = address[0] if isinstance(address, tuple) else address
        if not _is_own_address(host):
            raise OSError(f"tests have no network, but a connection to {host!r} was asked for")
    elif event == "socket.getaddrinfo" and not _needs_no_lookup(args[0]):
        raise OSError(f"tests have no network, but the address of {args[0]!r} was asked for")


def _is_own_address(host: object) -> bool:
    """Only addresses of this machine can be bound to."""
    if host in ("", "localhost", socket.gethostname()):
        return True
    family = socket.AF_INET6 if ":" in str(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(host), 0))
        except OSError:
            return False
    return True


def _needs_no_lookup(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()):
        return True
    return ":" in str(name) or str(name).replace(".", "").isdigit()
