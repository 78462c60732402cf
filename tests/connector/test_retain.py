"""What D retains in pin mode, on vLLM's real scheduler; only the worker is played."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

PROMPT = range(100, 196)  # six blocks
Make = Callable[..., Any]


def pinned(decode: Any, handle: str | None, tokens: Any = PROMPT, name: str = "") -> dict[str, Any]:
    """A finished turn's transfer parameters."""
    name = name or f"request-{handle}"
    decode.add(name, tokens, {"do_remote_prefill": False, **({"neuron_pd_handle": handle} if handle else {})})
    answer = decode.run(name)
    assert answer is not None
    return answer


def dropped(decode: Any) -> list[str]:
    """What the worker is told to let go of in the next step; it does."""
    decode.step()
    told = list(decode.metadata.neuron_pd_given_back)
    if told:
        decode.step(finished_sending=set(told))
    return told


def test_a_finished_turn_stays_and_says_where_it_is(engine: Make) -> None:
    decode = engine("decode", retention="pin")
    answer = pinned(decode, "h")
    assert answer["remote_request_id"] == "request-h"
    assert (answer["do_remote_decode"], answer["remote_num_tokens"]) == (True, 96)
    assert (answer["neuron_pd_handle"], len(answer["remote_block_ids"][0])) == ("h", 6)
    stats = decode.stats()
    assert (stats["kv_blocks_used"], stats["retained_blocks"], stats["pins_kept"]) == (6, 6, 1)


def test_p_reads_what_stayed_and_the_read_frees_it(engine: Make) -> None:
    decode, prefill = engine("decode", retention="pin"), engine("prefill")
    answer = pinned(decode, "h")
    prefill.add("p", [*PROMPT, 7, 8], answer)
    prefill.step()
    prefill.step(finished_recving={"p"})
    assert prefill.run("p")["neuron_pd_turn"]["reused"] == 96
    decode.step(finished_sending={"request-h"})
    stats = decode.stats()
    assert (stats["kv_blocks_used"], stats["open_leases"], stats["leases_read"]) == (0, 0, 1)


def test_without_a_handle_the_metadata_still_comes(engine: Make) -> None:
    decode = engine("decode", retention="pin")
    assert pinned(decode, None, name="r")["remote_request_id"] == "r"


def test_a_turn_that_ran_out_of_time_is_let_go_and_declined_by_p(engine: Make) -> None:
    decode, prefill = engine("decode", retention="pin", decoder_kv_blocks_ttl=0), engine("prefill")
    answer = pinned(decode, "h")
    assert dropped(decode) == ["request-h"]
    assert (decode.stats()["kv_blocks_used"], decode.stats()["leases_expired"]) == (0, 1)
    prefill.add("p", [*PROMPT, 7], answer)
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["path"], turn["reason"]) == ("recompute", "lease_gone")


def test_renewing_prolongs_by_the_kinds_own_time(engine: Make) -> None:
    decode = engine("decode", retention="pin", decoder_kv_blocks_ttl=300)
    pinned(decode, "h")
    renewed = decode.control("renew", "h")
    assert renewed["renewed"] == 1
    assert 290 < renewed["ttl"] <= 300
    lease = decode.control("acquire", "h")["kv_transfer_params"]["remote_request_id"]
    assert decode.control("renew", lease)["ttl"] <= 30
    assert decode.control("renew", "another") == {"reason": "unknown_handle"}


def test_a_conversation_that_ends_frees_its_blocks_early(engine: Make) -> None:
    decode = engine("decode", retention="pin")
    pinned(decode, "h")
    assert decode.control("release", "h") == 1
    assert dropped(decode) == ["request-h"]
    assert (decode.stats()["kv_blocks_used"], decode.stats()["leases_released"]) == (0, 1)
    assert decode.control("acquire", "h") == {"reason": "unknown_handle"}


def test_the_oldest_gives_way_when_the_budget_is_spent(engine: Make) -> None:
    decode = engine("decode", retention="pin", kv_blocks=33, pin_budget=0.5)  # 16 blocks
    for n in range(4):
        pinned(decode, f"h{n}", range(1000 * n, 1000 * n + 96))
        assert decode.stats()["retained_blocks"] <= 16
        dropped(decode)
    stats = decode.stats()
    assert (stats["retained_blocks"], stats["leases_given_up"]) == (12, 2)
    assert [decode.control("renew", f"h{n}").get("renewed") for n in range(4)] == [None, None, 1, 1]


def test_what_p_has_claimed_is_never_given_up(engine: Make) -> None:
    decode, prefill = engine("decode", retention="pin", kv_blocks=17), engine("prefill")  # a budget of 8 blocks
    prefill.add("p", [*PROMPT, 7], pinned(decode, "claimed"))
    prefill.step()
    decode.add("next", range(300, 396), {"neuron_pd_handle": "next"})
    assert decode.run("next") is None
    stats = decode.stats()
    assert (stats["retained_blocks"], stats["leases_given_up"], stats["pins_over_budget"]) == (6, 0, 1)
    prefill.step(finished_recving={"p"})
    assert prefill.run("p")["neuron_pd_turn"]["reused"] == 96


def test_idle_conversations_never_starve_a_new_request(engine: Make) -> None:
    decode = engine("decode", retention="pin", kv_blocks=33)
    for n in range(16):
        pinned(decode, f"h{n}", range(100 * n, 100 * n + 96))
        dropped(decode)


def test_of_several_choices_the_last_is_kept(engine: Make) -> None:
    decode = engine("decode", retention="pin")
    pinned(decode, "h", name="first")
    pinned(decode, "h", name="second")
    assert dropped(decode) == ["first"]
    assert decode.stats()["retained_blocks"] == 6


def test_an_aborted_reply_is_recorded_and_not_pinned(engine: Make) -> None:
    decode = engine("decode", retention="pin")
    decode.add("r", PROMPT, {"neuron_pd_handle": "h"}, max_tokens=100)
    for _ in range(5):
        decode.step()
    decode.abort("r")
    assert decode.stats()["kv_blocks_used"] == 0
    assert "kv_transfer_params" in decode.control("acquire", "h")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retention": "forever"}, "retention is 'forever': give lease or pin"),
        ({"read_lease_seconds": "soon"}, "read_lease_seconds is 'soon': give a number from 0 up"),
        ({"pin_budget": 1.5}, "pin_budget is 1.5: give a number from 0 to 1"),
        ({"unverified": "maybe"}, "unverified is 'maybe': give refuse or allow"),
        ({"kv_recompute_threshold": -1}, 'kv_recompute_threshold is -1: give a number of tokens, or "auto"'),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(engine: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        engine("decode", **settings)
    assert str(refused.value) == message
