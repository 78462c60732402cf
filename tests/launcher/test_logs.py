from pathlib import Path

import pytest

from neuron_pd.launcher.logs import LINE, TAIL, last_line, telling_line

VLLM = """\
(APIServer pid=100) INFO 11-30 03:11:02 [api_server.py:1] starting
(EngineCore pid=101) ERROR 11-30 03:11:12 [core.py:947] Traceback (most recent call last):
(EngineCore pid=101) ERROR 11-30 03:11:12 [core.py:947]     raise ValueError(
(EngineCore pid=101) ERROR 11-30 03:11:12 [core.py:947] ValueError: the model is too long
(APIServer pid=100) RuntimeError: Engine core initialization failed. See root cause above.
resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown
"""


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        (VLLM, "ValueError: the model is too long"),
        ("one\ntwo\n\n", "two"),
        ("", "its log is empty"),
        ("zmq.error.ZMQError: Address already in use\nbye\n", "zmq.error.ZMQError: Address already in use"),
        ("usage: api_server.py\napi_server.py: error: unrecognized arguments: --foo\n",
         "api_server.py: error: unrecognized arguments: --foo"),
    ],
)  # fmt: skip
def test_the_telling_line(text: str, telling: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert telling_line(log) == telling


def test_no_log(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none") == ""
    assert telling_line(tmp_path / "none") == "its log is empty"


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"ValueError: long ago\n" + b"\xff" * TAIL + b"\n" + b"x" * 1000 + b"\n")
    assert last_line(log) == "x" * LINE
    assert telling_line(log) == "x" * LINE
