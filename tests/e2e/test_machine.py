"""What must hold on every machine of ci/matrix.yaml, whatever it computes in: a conversation's KV goes both ways.

Answers are compared with cold runs where the model computes in float32 (test_turns.py); in bfloat16, KV that was read
and KV that was computed anew may round to other words.
"""

import os
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.test_turns import assistant, user

pytestmark = pytest.mark.e2e


def conversation(cluster: Cluster, turns: int) -> list[Any]:
    name, messages, answers = uuid4().hex, [user(7000, 3000)], []
    for turn in range(turns):
        answer = cluster.chat(messages, conversation_id=name)
        answers.append(answer)
        messages = [*messages, assistant(answer.text), user(20000 + 300 * turn, 300)]
    return answers


def test_later_turns_are_read_back(cluster: Cluster) -> None:
    first, *later = conversation(cluster, 3)
    assert (first.turn["path"], first.reused) == ("recompute", 0)
    for before, answer in zip([first, *later], later, strict=False):
        assert (answer.turn["path"], answer.turn["reason"]) == ("read_back", "verified")
        # All of the last prompt but its last, unfinished block; no block is larger than 256 tokens.
        assert answer.reused > int(before.turn["prompt"]) - 256


def test_both_engines_say_the_same_of_themselves(cluster: Cluster) -> None:
    prefill, decode = (cluster.control(url, "info").json() for url in (cluster.prefill, cluster.decode))
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    assert prefill["bidirectional"] is True
    assert prefill["retention"] == os.environ.get("NEURON_PD_TEST_RETENTION", "lease")
    for key in ("version", "vllm", "nixl", "torch", "accelerator", "block_size", "retention", "bidirectional"):
        assert prefill[key] == decode[key], key
