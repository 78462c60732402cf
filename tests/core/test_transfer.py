from typing import Any

import pytest

from neuron_pd.core.fingerprint import Fingerprint, Seed
from neuron_pd.core.transfer import FINGERPRINT, HANDLE, TURN, RemoteBlocks, TurnReport, first_leg, second_leg
from neuron_pd.errors import TransferParamsError

CHAIN = Fingerprint.of(range(32), 16, Seed("tiny"))


def lease(**changes: Any) -> dict[str, Any]:
    params = {
        "remote_block_ids": [[7, 9]],
        "remote_engine_id": "decode-1",
        "remote_request_id": "lease-1",
        "remote_host": "10.0.0.2",
        "remote_port": 5601,
        "remote_num_tokens": 32,
        "remote_blocks_expiry_time": 12.5,
        "tp_size": 1,
        FINGERPRINT: CHAIN.as_json(),
    }
    return {name: value for name, value in {**params, **changes}.items() if value is not ...}


def test_first_leg_without_a_lease_is_an_ordinary_prefill() -> None:
    assert first_leg() == {"do_remote_decode": True, "do_remote_prefill": False}


def test_first_leg_passes_unknown_fields_of_the_lease_on() -> None:
    sent = first_leg({"remote_block_ids": [[1]], "a_newer_field": {"x": 1.0}, "do_remote_decode": False})
    assert sent["a_newer_field"] == {"x": 1.0}
    assert sent["do_remote_decode"] is True


def test_second_leg_adds_the_handle_and_drops_the_report() -> None:
    answer = {"do_remote_prefill": True, "remote_block_ids": [[1]], TURN: {"path": "recompute"}}
    assert second_leg(answer, "h") == {"do_remote_prefill": True, "remote_block_ids": [[1]], HANDLE: "h"}
    assert HANDLE not in second_leg(answer, None)
    assert TURN in answer


def test_parse_reads_a_lease() -> None:
    remote = RemoteBlocks.parse(lease(), 1)
    assert remote == RemoteBlocks("decode-1", "lease-1", ((7, 9),), 32, CHAIN)


@pytest.mark.parametrize("params", [{}, {"remote_block_ids": None}, {"remote_block_ids": []}, first_leg()])
def test_parse_finds_no_lease(params: dict[str, Any]) -> None:
    assert RemoteBlocks.parse(params, 1) is None


def test_a_lease_without_a_fingerprint_is_parsed_and_says_so() -> None:
    remote = RemoteBlocks.parse(lease(**{FINGERPRINT: ...}), 1)
    assert remote is not None
    assert remote.fingerprint is None


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": [1, 2]},
        {"remote_block_ids": [[1], [2]]},
        {"remote_block_ids": "12"},
        {"remote_block_ids": ["ab"]},
        {"remote_block_ids": [[1, -2]]},
        {"remote_block_ids": [[True]]},
        {"remote_block_ids": [[1.5]]},
        {"remote_block_ids": {"0": [1]}},
        {"remote_engine_id": ...},
        {"remote_engine_id": ""},
        {"remote_request_id": 5},
        {"remote_host": None},
        {"remote_port": "5601"},
        {"remote_port": 70000},
        {"remote_port": True},
        {"tp_size": 0},
        {"remote_num_tokens": ...},
        {"remote_num_tokens": -1},
        {"remote_num_tokens": 3.0},
        {"remote_blocks_expiry_time": "soon"},
        {"remote_blocks_expiry_time": False},
        {FINGERPRINT: "abc"},
    ],
)
def test_what_does_not_hold_together_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(TransferParamsError) as error:
        RemoteBlocks.parse(lease(**changes), 1)
    assert error.value.reason == "malformed"


def test_a_turn_report_travels_and_half_a_report_is_none() -> None:
    report = TurnReport("read_back", "verified", 200, 128, 128, 128, 0)
    assert TurnReport.from_json({**report.as_json(), "newer": 1}) == report
    assert TurnReport.from_json({"path": "read_back"}) is None
    assert str(report) == (
        "path=read_back reason=verified prompt=200 offered=128 verified=128 reused=128 local=0 "
        "took_ms=0.0 read_ms=0.0 expected_ms=0.0"
    )
