from neuron_pd.bench.workloads import Dialogue, History, Turn


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_servers_answers_go_in_between() -> None:
    history = History()
    first, second = Turn((said("a"),), 4), Turn((said("b"),), 4)
    sent = history.request(first)
    assert sent == [said("a")]
    history.answered(sent, first, [" x", " y"])
    assert history.request(second) == [said("a"), {"role": "assistant", "content": " x y"}, said("b")]


def test_a_fork_goes_back_and_a_compaction_starts_again() -> None:
    history = History()
    for number in (1, 2, 3):
        turn = Turn((said(str(number)),), 4)
        history.answered(history.request(turn), turn, [f"answer {number}"])
    fork = history.request(Turn((said("fork"),), 4, after=1))
    assert [message["content"] for message in fork] == ["1", "answer 1", "fork"]
    assert history.request(Turn((said("all in short"),), 4, after=0)) == [said("all in short")]


def test_reasoning_does_not_come_back_but_an_answer_always_does() -> None:
    for reasoning, kept in ((2, " c"), (9, " c"), (0, " a b c")):
        history, turn = History(), Turn((said("q"),), 3, reasoning=reasoning)
        history.answered(history.request(turn), turn, [" a", " b", " c"])
        assert history.request(Turn((), 1))[-1]["content"] == kept


def test_turns_that_the_model_has_no_room_for_are_left_out() -> None:
    turns = tuple(Turn((said("x" * 400),), 50) for _ in range(4))
    dialogue = Dialogue(turns)
    assert len(dialogue.within(300, 4.0).turns) == 2
    assert dialogue.within(600, 4.0) == dialogue
    compacted = Dialogue((*turns[:2], Turn((said("x" * 400),), 50, after=0)))
    assert len(compacted.within(300, 4.0).turns) == 3
    assert (len(dialogue.first(3).turns), dialogue.first(0)) == (3, dialogue)
