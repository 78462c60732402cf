from hypothesis import given
from hypothesis import strategies as st

from ci.random_conversations import Conversation

numbers = st.integers(0, 10_000)


def spoken(seed: int, number: int, turns: int) -> list[list[dict[str, str]]]:
    """The messages of each of the conversation's requests."""
    conversation, requests = Conversation.of(seed, number), []
    for turn in range(turns):
        conversation.say()
        requests.append([dict(message) for message in conversation.messages])
        conversation.hear(f"reply {turn}")
    return requests


@given(seed=numbers, number=numbers, turns=st.integers(1, 12))
def test_every_request_ends_with_something_to_answer(seed: int, number: int, turns: int) -> None:
    for messages in spoken(seed, number, turns):
        assert messages[-1]["role"] != "assistant"
        assert all(message["content"].strip() for message in messages)


@given(seed=numbers, number=numbers)
def test_a_number_and_a_seed_make_one_conversation(seed: int, number: int) -> None:
    assert spoken(seed, number, 6) == spoken(seed, number, 6)


def test_all_kinds_of_turns_come_up() -> None:
    conversation, seen = Conversation.of(0, 0), set()
    for _ in range(200):
        seen.add(conversation.say())
        conversation.hear("a reply of some words")
    assert seen == {"continue", "edit", "fork", "regenerate", "compact"}


def test_a_third_is_known_by_its_transcript_alone() -> None:
    assert [Conversation.of(0, number).identity() for number in range(3)] == [
        ({"conversation_id": "random-0"}, {}),
        ({}, {"X-Session-ID": "random-1"}),
        ({}, {}),
    ]
