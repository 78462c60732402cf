"""One Redis for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.redis import RedisServer


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    directory: Path = tmp_path_factory.mktemp("redis")
    with RedisServer(directory) as server:
        yield server
