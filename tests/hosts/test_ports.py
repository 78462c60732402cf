import os
import socket

import pytest

from neuron_pd.errors import PortInUse, UsageError
from neuron_pd.hosts import ports
from tests.launcher.plans import free_port


def test_a_port_in_use_names_its_holder(listener: int) -> None:
    with pytest.raises(PortInUse) as caught:
        ports.check_port_free("127.0.0.1", listener, "prefill")
    message = str(caught.value)
    assert f"port {listener}, which prefill needs, is in use by pid {os.getpid()} (" in message
    assert "\n" not in message


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", "::1"])
def test_a_free_port(host: str) -> None:
    ports.check_port_free(host, free_port(), "prefill")


def test_a_port_whose_earlier_connections_still_close_is_free() -> None:
    """As after a restart: the kernel keeps TIME_WAIT for a minute."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)
    ports.check_port_free("127.0.0.1", port, "prefill")


@pytest.mark.parametrize(
    ("host", "message"),
    [("203.0.113.7", "prefill cannot listen on 203.0.113.7"), ("no such host", "'no such host', where prefill is to")],
)
def test_an_address_that_is_not_here(host: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ports.check_port_free(host, free_port(), "prefill")
