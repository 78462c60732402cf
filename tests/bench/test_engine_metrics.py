import pytest

from neuron_pd.bench.client import session
from neuron_pd.bench.engine_metrics import EngineMeter, parse_transfers
from neuron_pd.bench.records import Transfers

from .endpoint import Endpoint, metrics_page


def test_the_nixl_lines_of_a_page() -> None:
    assert parse_transfers(metrics_page(3, 500)) == Transfers(count=3, seconds=0.012, bytes=500_000, failed=0)


def test_engines_of_one_server_are_summed() -> None:
    page = metrics_page(1, 10) + "".join(
        line.replace('engine="0"', 'engine="1"') + "\n" for line in metrics_page(2, 20).splitlines() if line[0] != "#"
    )
    assert parse_transfers(page) == Transfers(count=3, seconds=0.012, bytes=30_000, failed=0)


def test_a_page_without_nixl() -> None:
    assert parse_transfers("# TYPE up gauge\nup 1\n") is None


def test_a_counter_that_went_back_means_another_engine() -> None:
    assert Transfers(1, 0.5, 10, 0).since(Transfers(4, 0.5, 10, 0)) is None
    assert Transfers(6, 1.5, 30, 1).since(Transfers(4, 0.5, 10, 0)) == Transfers(2, 1.0, 20, 1)
    assert Transfers(2, 1.0, 20).mean_ms == 500.0
    assert Transfers().mean_ms == 0.0


@pytest.mark.parametrize("lag", [0, 1, 3])
async def test_a_late_transfer_is_waited_for(endpoint: Endpoint, lag: int) -> None:
    endpoint.reads, endpoint.read_tokens = 4, 0
    async with session() as http:
        meter = EngineMeter(http, endpoint.url, patience=30.0)
        before = await meter.read()
        endpoint.reads, endpoint.read_tokens, endpoint.hidden = 5, 70, lag
        after = await meter.since(before, expected=True)
    assert after is not None
    assert (after.count, after.bytes) == (1, 70_000)


async def test_the_wait_is_bounded(endpoint: Endpoint) -> None:
    async with session() as http:
        meter = EngineMeter(http, endpoint.url, patience=0.2)
        assert await meter.since(await meter.read(), expected=True) == Transfers()


async def test_no_engine_no_transfers(unused_tcp_port: int) -> None:
    async with session() as http:
        for url in (None, f"http://127.0.0.1:{unused_tcp_port}"):
            meter = EngineMeter(http, url)
            assert await meter.read() is None
            assert await meter.since(None, expected=True) is None
