import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that and never see Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("neuron-pd", deadline=None)
hypothesis.settings.load_profile("neuron-pd")

# Folders and modules whose tests run programs, vLLM's servers aside (those are `e2e`), or take seconds each. Others
# that take long are marked one by one.
SLOW = (
    "ci",
    "cli",
    "docs",
    "launch_assets",
    "bench/proxy/test_measure.py",
    "bench/test_browser.py",
    "bench/test_cli.py",
    "bench/test_report.py",
    "doctor/probes/test_nixl.py",
    "doctor/test_libfabric.py",
    "launcher/formats",
    "launcher/test_supervisor.py",
    "models/test_tiny.py",
    "proxy/test_cli.py",
    "proxy/test_load.py",
    "proxy/test_ui.py",
    "proxy/test_workers.py",
)


ROOT = Path(__file__).parent


def is_slow(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / name) for name in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `-m "not slow"` leaves out is not even imported."""
    return True if "not slow" in config.option.markexpr and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of loopback on which something listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]
