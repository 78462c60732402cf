"""What the load client asks."""

import orjson

from neuron_pd.bench.proxy.load import Ask


def test_every_request_begins_a_conversation_that_no_earlier_run_had() -> None:
    runs = [Ask("id", paced=False), Ask("id", paced=False)]
    bodies = [orjson.loads(ask(client, 1).partition(b"\r\n\r\n")[2]) for ask in runs for client in range(3)]
    assert len({body["conversation_id"] for body in bodies}) == 6
    assert len({body["messages"][1]["content"] for body in bodies}) == 6
    assert "conversation_id" not in orjson.loads(Ask("transcript", paced=False)(0, 1).partition(b"\r\n\r\n")[2])
