from typing import Any

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.launcher.request import Request, check_request


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": "both"}, "unknown role 'both': use prefill or decode"),
        ({"connector": "mine"}, "unknown connector 'mine': use neuron-pd or upstream"),
        ({"retention": "for ever"}, "unknown retention 'for ever': use lease or pin"),
        ({"engines": 2, "index": 2}, "--index 2 is none of 2 engines: use 0 to 1"),
        (
            {"decode_host": "10.0.0.2"},
            "decode on 10.0.0.2 cannot reach the side channel on 127.0.0.1: give --prefill-host ",
        ),
        (
            {"side_channel_host": "localhost", "prefill_host": "10.0.0.1", "decode_host": "10.0.0.2"},
            "decode on 10.0.0.2 cannot reach the side channel on localhost",
        ),
        (
            {"prefill_host": "0.0.0.0"},
            "the side channel's host is what decode connects to: give --prefill-host this node's address",
        ),
        (
            {"role": "decode", "prefix_caching": False},
            "decode reads conversations out of its prefix cache: leave --no-prefix-caching out, or add --no-bidir",
        ),
    ],
)
def test_what_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_request(Request(**{"role": "prefill", "model": "m", **given}))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"prefill_host": "10.0.0.1"},
        {"prefill_host": "localhost", "decode_host": "127.0.0.1"},
        {"role": "decode", "prefix_caching": False, "bidir": False},
        {"role": "decode", "prefix_caching": False, "connector": "upstream"},
    ],
)
def test_what_can_be(given: dict[str, Any]) -> None:
    check_request(Request(**{"role": "prefill", "model": "m", **given}))


@pytest.mark.parametrize(
    ("prefill", "decode", "together"),
    [
        (None, None, True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", None, False),
        ("localhost", "127.0.0.1", True),
    ],
)
def test_one_machine_or_two(prefill: str | None, decode: str | None, together: bool) -> None:
    for role in ("prefill", "decode"):
        if role == "decode" and decode is None and prefill is not None:
            continue
        assert Request(role=role, model="m", prefill_host=prefill, decode_host=decode).one_machine is together
