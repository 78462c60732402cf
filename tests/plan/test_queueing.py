import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.plan.queueing import closed_queue, erlang_c, open_queue


def test_constant_service_waits_as_m_d_1() -> None:
    found = open_queue(rate=0.8, services=[1.0])
    assert found.wait == pytest.approx(0.8 / (2 * (1 - 0.8)))
    assert found.utilisation == pytest.approx(0.8)


def test_mixed_service_waits_as_pollaczek_and_khinchine_say() -> None:
    services = [0.1, 0.1, 2.0]
    second_moment = sum(each**2 for each in services) / 3
    load = 0.9 * sum(services) / 3
    assert open_queue(0.9, services).wait == pytest.approx(0.9 * second_moment / (2 * (1 - load)))


def test_erlang_c_has_its_known_values() -> None:
    assert erlang_c(0.5, 1) == pytest.approx(0.5)
    assert erlang_c(1.0, 2) == pytest.approx(1 / 3)
    assert erlang_c(8.0, 10) == pytest.approx(0.4092, abs=1e-4)


def test_an_overloaded_queue_has_no_wait_and_an_idle_one_none() -> None:
    assert open_queue(2.0, [1.0]).wait is None
    assert open_queue(2.0, [1.0]).utilisation == 2.0
    assert open_queue(0.0, [1.0]).wait == 0.0


@given(st.floats(0.05, 0.95), st.integers(1, 16))
def test_more_servers_at_the_same_utilisation_wait_less(utilisation: float, servers: int) -> None:
    fewer = open_queue(utilisation * servers, [1.0], servers).wait
    more = open_queue(utilisation * (servers + 1), [1.0], servers + 1).wait
    assert fewer is not None
    assert more is not None
    assert more <= fewer


def test_a_closed_queue_of_one_never_waits_and_a_crowded_one_is_bound_by_the_server() -> None:
    assert closed_queue(1, 1.0, 5.0).wait == 0
    crowded = closed_queue(100, 1.0, 5.0)
    assert crowded.utilisation == pytest.approx(1.0, abs=1e-6)
    assert crowded.wait == pytest.approx(100 - 5 - 1, rel=1e-3)  # each waits for all that are not away


def test_two_clients_of_a_closed_queue() -> None:
    # Machine repairmen, two machines, repair 1 and up time 1: states 0, 1, 2 at the server weigh 1, 2, 2.
    found = closed_queue(2, 1.0, 1.0)
    assert found.utilisation == pytest.approx(4 / 5)
    assert found.wait == pytest.approx(6 / 5 / (4 / 5) - 1)
