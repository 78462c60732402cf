from collections.abc import AsyncIterator

import pytest

from .endpoint import Endpoint, serving


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    """A running endpoint; set its attributes to make it behave otherwise."""
    served = Endpoint()
    async with serving(served):
        yield served
