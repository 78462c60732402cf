"""Models with other kinds of KV cache, and engines with different block sizes: reused or refused, and never wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kinds import make
from tests.e2e.servers import Pair, Server

pytestmark = pytest.mark.e2e

SOURCE = " ".join(f"word{n}" for n in range(900))


def two_turns(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    """What D's answer to an acquire was, and P's report of the second turn; both answers are right."""
    prompt = SOURCE[300:2300]
    expected = pair.cold(prompt)
    reply, _, _ = pair.turn(prompt, handle="h")
    assert reply == expected
    longer = prompt + reply + SOURCE[:300]
    acquired = pair.decode.control("acquire", {"handle": "h"})
    expected = pair.cold(longer)
    reply, report, _ = pair.turn(longer, acquired.json().get("kv_transfer_params"))
    assert reply == expected
    stats = pair.decode.settled()
    assert (stats["open_leases"], stats["kv_blocks_used"]) == (0, 0)
    return acquired.json(), report


@pytest.fixture(scope="module", params=["mla", "sliding", "hybrid"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Pair]]:
    path = tmp_path_factory.mktemp(request.param)
    model = make(request.param, path / "model")
    with Pair(*(Server(role, path / f"{role}.log", model=model) for role in ("prefill", "decode"))) as pair:
        yield request.param, pair


def test_a_kind_of_cache_is_reused_or_refused(kind: tuple[str, Pair]) -> None:
    name, pair = kind
    acquired, report = two_turns(pair)
    if name == "mla":
        assert (report["path"], report["reason"]) == ("read_back", "verified")
        assert report["reused"] == acquired["kv_transfer_params"]["remote_num_tokens"]
    else:
        assert acquired == {"reason": "disabled"}
        assert report["path"] == "recompute"


@pytest.mark.parametrize(("on_p", "on_d"), [(32, 64), (64, 32)])
def test_different_block_sizes_are_reused_in_whole_blocks_of_both(tmp_path: Path, on_p: int, on_d: int) -> None:
    sizes = {"prefill": on_p, "decode": on_d}
    servers = (Server(role, tmp_path / f"{role}.log", args=["--block-size", str(n)]) for role, n in sizes.items())
    with Pair(*servers) as pair:
        _, report = two_turns(pair)
    assert report["reused"] > 0
    assert report["reused"] % 64 == 0
