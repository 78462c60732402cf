"""What neuron-pd keeps for a user between commands: the control token's file, logs of runs, what was started."""

import os
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from neuron_pd.core.control import TOKEN_ENV, TOKEN_FILE_ENV
from neuron_pd.errors import UsageError


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Under XDG_STATE_HOME when that is absolute (XDG base directories), else under ~/.local/state."""
    root = Path((os.environ if environ is None else environ).get("XDG_STATE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".local" / "state") / "neuron-pd"


def new_run_dir() -> Path:
    """A name for a new run's directory. It is not made here."""
    return state_dir() / "runs" / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"


def token_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that holds the control token, made for this user (mode 0600) when the environment names no token.

    None when the token itself is in the environment: processes then inherit it, and it is written nowhere.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(TOKEN_FILE_ENV):
        return Path(named).absolute()
    if environ.get(TOKEN_ENV, "").strip():
        return None
    path = state_dir(environ) / "control-token"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists() or not path.read_text().strip():
            _write_private(path, secrets.token_urlsafe(32))
    except OSError as error:
        raise UsageError(f"cannot write the control token to {path}: {error.strerror}; set {TOKEN_FILE_ENV}") from error
    return path


def _write_private(path: Path, text: str) -> None:
    """Write in one step: a process that starts at the same time reads this token or the other, never half of one."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text + "\n")
    draft.rename(path)
