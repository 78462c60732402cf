from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.launcher.state import new_run_dir, state_dir, token_file


def test_a_token_is_made_once_for_this_user_only(own_state: Path) -> None:
    path = token_file()
    assert path == own_state / "neuron-pd" / "control-token"
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text().strip()
    assert len(token) >= 32
    assert token_file() == path
    assert path.read_text().strip() == token
    assert [entry.name for entry in path.parent.iterdir()] == ["control-token"]


def test_an_empty_token_file_is_filled(own_state: Path) -> None:
    (own_state / "neuron-pd").mkdir(parents=True)
    (own_state / "neuron-pd" / "control-token").write_text("\n")
    path = token_file()
    assert path is not None
    assert path.read_text().strip()


def test_a_token_in_the_environment_is_written_nowhere(own_state: Path) -> None:
    assert token_file({"NEURON_PD_CONTROL_TOKEN": "secret", "XDG_STATE_HOME": str(own_state)}) is None
    assert token_file({"NEURON_PD_CONTROL_TOKEN_FILE": "/somewhere/token"}) == Path("/somewhere/token")
    assert not own_state.exists()


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write the control token to .*; set NEURON_PD_CONTROL_TOKEN_FILE"):
        token_file({"XDG_STATE_HOME": str(tmp_path / "file")})


def test_a_relative_state_home_is_ignored() -> None:
    assert state_dir({"XDG_STATE_HOME": "here"}) == Path.home() / ".local" / "state" / "neuron-pd"


def test_run_directories_are_not_made_by_naming_them(own_state: Path) -> None:
    assert new_run_dir().is_relative_to(own_state)
    assert not new_run_dir().exists()
