import pytest

from neuron_pd.plan.retention import retention


def test_a_pool_holds_what_fits_beside_the_running_replies() -> None:
    found = retention(100_000, 1_000, ttl=480, rate=2.0, reply_seconds=5.0)
    assert (found.running, found.conversations) == (10.0, 90)
    assert found.lease_seconds == pytest.approx(45)
    assert found.pin_rate == pytest.approx(90 / 480)
    assert found.pin_pinned == pytest.approx(960)
    assert found.pin_starves


def test_without_a_rate_nothing_is_said_about_time() -> None:
    found = retention(100_000, 1_000, ttl=480, rate=None, reply_seconds=5.0)
    assert found.conversations == 100
    assert found.lease_seconds is found.pin_pinned is found.pin_starves is None


def test_a_slow_rate_fits_and_a_small_pool_holds_none() -> None:
    assert retention(100_000, 1_000, 480, 0.1, 1.0).pin_starves is False
    assert retention(500, 1_000, 480, None, 1.0).conversations == 0
