import signal
import socket
from collections.abc import Iterator

import hypothesis
import pytest

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that and never see Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("neuron-pd", deadline=None)
hypothesis.settings.load_profile("neuron-pd")


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of loopback on which something listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]
