import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.core.fingerprint import DIGEST_BYTES, Fingerprint, Seed
from neuron_pd.errors import TransferParamsError

SEED = Seed(model="tiny", key="token")
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def reference_digest(prefix: list[int], seed: Seed) -> bytes:
    """The wire format, written down a second time."""
    state = hashlib.blake2b(key=hashlib.sha256(seed.key.encode()).digest(), digest_size=8, person=b"neuron-pd kv 1")
    for part in (seed.model, seed.revision, seed.adapter, seed.cache_salt):
        state.update(struct.pack("<Q", len(part.encode())) + part.encode())
    state.update(struct.pack(f"<{len(prefix)}I", *prefix))
    return state.digest()


@given(tokens, st.integers(1, 9))
def test_each_digest_covers_the_whole_prefix(sequence: list[int], block_size: int) -> None:
    chain = Fingerprint.of(sequence, block_size, SEED)
    assert len(chain) == len(sequence) // block_size
    for index in range(len(chain)):
        digest = chain.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        assert digest == reference_digest(sequence[: (index + 1) * block_size], SEED)


@given(tokens, tokens, st.integers(1, 9))
def test_matches_is_the_longest_common_prefix_in_whole_blocks(a: list[int], b: list[int], block_size: int) -> None:
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    assert Fingerprint.of(a, block_size, SEED).matches(b, SEED) == common - common % block_size


@given(tokens, st.integers(1, 9), st.integers(0, 79))
def test_one_changed_token_ends_the_match_at_its_block(sequence: list[int], block_size: int, where: int) -> None:
    chain = Fingerprint.of(sequence, block_size, SEED)
    if where >= len(sequence):
        return
    changed = [*sequence[:where], (sequence[where] + 1) % 2**32, *sequence[where + 1 :]]
    assert chain.matches(changed, SEED) == min(where // block_size, len(chain)) * block_size


@pytest.mark.parametrize(
    "other",
    [
        Seed("other", key="token"),
        Seed("tiny", revision="r", key="token"),
        Seed("tiny", adapter="lora", key="token"),
        Seed("tiny", cache_salt="tenant", key="token"),
        Seed("tiny", key="another token"),
        Seed("tiny"),
    ],
)
def test_everything_in_the_seed_separates(other: Seed) -> None:
    assert Fingerprint.of(range(64), 16, SEED).matches(range(64), other) == 0


def test_seed_parts_do_not_run_into_each_other() -> None:
    assert Fingerprint.of(range(16), 16, Seed("ab", "c")) != Fingerprint.of(range(16), 16, Seed("a", "bc"))


def test_limit_and_first_cut_to_blocks() -> None:
    chain = Fingerprint.of(range(100), 10, SEED)
    assert Fingerprint.of(range(100), 10, SEED, limit=3) == chain.first(3)
    assert chain.first(3).num_tokens == 30


@given(tokens, st.integers(1, 9))
def test_the_wire_form_comes_back(sequence: list[int], block_size: int) -> None:
    chain = Fingerprint.of(sequence, block_size, SEED)
    assert Fingerprint.from_json(chain.as_json()) == chain


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"block_size": 16},
        {"block_size": 0, "digests": ""},
        {"block_size": True, "digests": ""},
        {"block_size": "16", "digests": ""},
        {"block_size": 16, "digests": "not base64!"},
        {"block_size": 16, "digests": "YWJj"},
        {"block_size": 16, "digests": 5},
    ],
)
def test_what_is_not_a_fingerprint_is_malformed(body: object) -> None:
    with pytest.raises(TransferParamsError) as error:
        Fingerprint.from_json(body)
    assert error.value.reason == "malformed"
