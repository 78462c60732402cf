"""systemd units of engines (systemd.service, systemd.exec and systemd.syntax manual pages)."""

import shutil
from collections.abc import Sequence
from typing import Final

from neuron_pd.launcher.formats.ending import STOP_SECONDS
from neuron_pd.launcher.formats.shell import comments
from neuron_pd.launcher.formats.units import TARGET, TARGET_NAME, engine_unit
from neuron_pd.launcher.notes import start_delay
from neuron_pd.launcher.serve import ServeSpec

PLACE: Final = "/etc/systemd/system"
FRESH_ID: Final = "${INVOCATION_ID}"  # systemd's own id of this start
ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "%": "%%"}


def systemd(specs: Sequence[ServeSpec]) -> str:
    """One unit for each engine, and the target that they are part of, each under a comment with its file."""
    return "\n".join([*map(unit, specs), f"# {PLACE}/{TARGET_NAME}\n{TARGET}"])


def unit(spec: ServeSpec) -> str:
    """The unit of one engine. It starts after the network, restarts after a failure, and may lock memory."""
    fresh = spec.with_engine_id(f"{spec.role}-{_MARK}") if spec.draws_id else spec
    command = " ".join(_argument(word) for word in _absolute(fresh.argv()))
    delay = start_delay(spec.request, spec.instance)
    service = [
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in spec.environment().items()),
        *([f"ExecStartPre=/bin/sleep {delay}"] if delay else []),
        f"ExecStart={command}",
    ]
    head = [f"# {PLACE}/neuron-pd-{spec.name}.service", *comments(spec.notes)]
    return "\n".join([*head, engine_unit(f"neuron-pd {spec.name} engine", service, STOP_SECONDS + delay)])


_MARK: Final = "@INVOCATION@"


def _absolute(argv: list[str]) -> list[str]:
    """systemd looks for a program in its own few directories only."""
    found = shutil.which(argv[0])
    return [found, *argv[1:]] if found else ["/usr/bin/env", *argv]


def _argument(word: str) -> str:
    return _quoted(word.replace("$", "$$")).replace(_MARK, FRESH_ID)


def _quoted(text: str) -> str:
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in ESCAPES:
        return ESCAPES[character]
    return f"\\x{ord(character):02x}" if ord(character) < 32 or ord(character) == 127 else character
