"""Models with other kinds of KV cache, and engines with different block sizes: reused or refused, and never wrong."""

from pathlib import Path
from typing import Any

import pytest

from neuron_pd.profiles import ROLES
from tests.e2e.kinds import make
from tests.e2e.servers import Pair, Server

pytestmark = pytest.mark.e2e

SOURCE = " ".join(f"word{n}" for n in range(900))


# The kernels of latent attention take half precision only, in which replies are computed otherwise than prompts are: so
# the first turn of that model says one token, and all that is reused was computed as a prompt.
ARGS = {"mla": ["--dtype", "bfloat16"]}
SAYS = {"mla": 1}


def two_turns(pair: Pair, says: int = 24) -> tuple[dict[str, Any], dict[str, Any]]:
    """What D's answer to an acquire was, and P's report of the second turn; both answers are right."""
    prompt = SOURCE[300:2300]
    expected = pair.cold(prompt, says)
    reply, _, _ = pair.turn(prompt, handle="h", tokens=says)
    assert reply == expected
    longer = prompt + reply + SOURCE[:300]
    acquired = pair.decode.control("acquire", {"handle": "h"})
    expected = pair.cold(longer)
    reply, report, _ = pair.turn(longer, acquired.json().get("kv_transfer_params"))
    assert reply == expected
    stats = pair.decode.settled()
    assert (stats["open_leases"], stats["kv_blocks_used"]) == (0, 0)
    return acquired.json(), report


@pytest.mark.parametrize("kind", ["mla", "sliding", "hybrid"])
def test_a_kind_of_cache_is_reused_or_refused(tmp_path: Path, kind: str) -> None:
    model = make(kind, tmp_path / "model")
    servers = (Server(role, tmp_path / f"{role}.log", model=model, args=ARGS.get(kind, ())) for role in ROLES)
    with Pair(*servers) as pair:
        acquired, report = two_turns(pair, SAYS.get(kind, 24))
        # Without AMX, vLLM for CPU keeps no prefix cache where attention is latent.
        kept = pair.decode.control("info").json()["prefix_caching"]
    if kind == "mla" and kept:
        assert (report["path"], report["reason"]) == ("read_back", "verified")
        assert report["reused"] == acquired["kv_transfer_params"]["remote_num_tokens"]
    else:
        assert acquired == {"reason": "disabled"}
        assert report["path"] == "recompute"


@pytest.mark.parametrize(("on_p", "on_d"), [(32, 64), (64, 32)])
def test_different_block_sizes_are_reused_where_p_s_are_made_of_d_s_and_never_wrong(
    tmp_path: Path, on_p: int, on_d: int
) -> None:
    sizes = {"prefill": on_p, "decode": on_d}
    servers = (Server(role, tmp_path / f"{role}.log", args=["--block-size", str(n)]) for role, n in sizes.items())
    with Pair(*servers) as pair:
        _, report = two_turns(pair)
    if on_p < on_d:
        assert (report["path"], report["reason"]) == ("recompute", "unsupported")
    else:
        assert report["reused"] > 0
        assert report["reused"] % on_p == 0
