from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'neuron-pd[cpu]'")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.connector.engine import model_directory

    return model_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make an engine: `engine("decode", kv_blocks=64)`."""
    from tests.connector.engine import Engine

    monkeypatch.setenv("NEURON_PD_CONTROL_TOKEN", "token")
    return lambda role, **settings: Engine(model, role, **settings)
