import dataclasses
from pathlib import Path

import pytest

from neuron_pd.core.control import TOKEN_ENV, TOKEN_FILE_ENV, EngineInfo, control_token
from neuron_pd.errors import UsageError

INFO = EngineInfo("0", "0.32.0", "1.5", "2.13", "tiny", "decode", "d-1", "cpu", 128, 9, "lease", True, True, 64, 30.0)


def test_no_token_is_none() -> None:
    assert control_token({}) is None


def test_the_variable_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from file\n")
    environ = {TOKEN_FILE_ENV: str(tmp_path / "token")}
    assert control_token(environ) == "from file"
    assert control_token({**environ, TOKEN_ENV: "from variable"}) == "from variable"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_file_without_a_token_stops_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=str(path)):
        control_token({TOKEN_FILE_ENV: str(path)})


def test_info_travels_and_ignores_what_a_newer_engine_adds() -> None:
    assert EngineInfo.from_json({**INFO.as_json(), "newer": 1}) == INFO
    with pytest.raises(KeyError):
        EngineInfo.from_json({name: value for name, value in dataclasses.asdict(INFO).items() if name != "block_size"})
