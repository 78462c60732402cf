import pytest

from neuron_pd.bench.client import session
from neuron_pd.bench.engine_metrics import EngineMeter, Reading, moved, parse_metrics
from neuron_pd.bench.records import Phases, Transfers

from .endpoint import Endpoint, metrics_page


def test_the_nixl_lines_of_a_page() -> None:
    found = parse_metrics(metrics_page(3, 500)).transfers
    assert found == Transfers(count=3, seconds=0.012, bytes=500_000, failed=0, descriptors=48)


def test_where_requests_spent_their_time() -> None:
    phases = parse_metrics(metrics_page(0, 0, answered=2)).phases
    assert phases == Phases(count=2, first_token=0.060, queued=0.012, prefill=0.040)


def test_engines_of_one_server_are_summed() -> None:
    page = metrics_page(1, 10) + "".join(
        line.replace('engine="0"', 'engine="1"') + "\n" for line in metrics_page(2, 20).splitlines() if line[0] != "#"
    )
    assert parse_metrics(page).transfers == Transfers(count=3, seconds=0.012, bytes=30_000, failed=0, descriptors=48)


def test_a_page_without_nixl() -> None:
    assert parse_metrics("# TYPE up gauge\nup 1\n") == Reading()


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
    assert after.transfers is not None
    assert (after.transfers.count, after.transfers.bytes) == (1, 70_000)


async def test_the_wait_is_bounded(endpoint: Endpoint) -> None:
    async with session() as http:
        meter = EngineMeter(http, endpoint.url, patience=0.2)
        assert await meter.since(await meter.read(), expected=True) == Reading(Transfers(), Phases())


async def test_no_engine_no_transfers(unused_tcp_port: int) -> None:
    async with session() as http:
        for url in (None, f"http://127.0.0.1:{unused_tcp_port}"):
            meter = EngineMeter(http, url)
            assert await meter.read() == Reading()
            assert await meter.since(Reading(), expected=True) == Reading()
            assert await meter.stats() == {}


async def test_the_control_paths_numbers_need_its_token(endpoint: Endpoint) -> None:
    endpoint.token, endpoint.reads = "secret", 3
    async with session() as http:
        before = await EngineMeter(http, endpoint.url, token="secret").stats()
        assert await EngineMeter(http, endpoint.url, token="other").stats() == {}
        endpoint.reads = 5
        after = await EngineMeter(http, endpoint.url, token="secret").stats()
    assert moved(after, before) == {"turns_read_back_verified": 2}
