"""What all systemd units of ours have in common, and those of a machine image: `launch/systemd` holds them.

A machine of the image is told what it is by files in /etc/neuron-pd, and runs a unit when its file is there:
`engine.env` for engines, `proxy.env` for a proxy. Both are environment variables of `neuron-pd launch` and `neuron-pd
proxy`, so the units hold no flag. `machine.env` is the image's: paths of the program and its libraries.
"""

from collections.abc import Sequence
from typing import Final

from neuron_pd.core.control import TOKEN_FILE_ENV
from neuron_pd.launcher.formats.ending import DRAIN_SECONDS, STOP_SECONDS
from neuron_pd.launcher.layout import STAGGER_SECONDS

MOST_ENGINES: Final = 16  # of one machine
PROGRAM: Final = "/opt/neuron-pd/bin/neuron-pd"
SETTINGS: Final = "/etc/neuron-pd"
TARGET_NAME: Final = "neuron-pd.target"
TARGET: Final = """[Unit]
Description=neuron-pd on this machine: its engines, its proxy

[Install]
WantedBy=multi-user.target
"""


def engine_unit(description: str, service: Sequence[str], start_seconds: int, condition: str | None = None) -> str:
    """`service` says what runs, and how; this says how it lives."""
    life = ["Restart=on-failure", "RestartSec=10", "KillMode=mixed"]
    times = [f"TimeoutStopSec={STOP_SECONDS}", f"TimeoutStartSec={start_seconds}"]
    return _unit(description, condition, ["Type=exec", *service, "LimitMEMLOCK=infinity", *life, *times])


def machine_units() -> dict[str, str]:
    """The units of a machine image, by file name."""
    return {TARGET_NAME: TARGET, "neuron-pd-engine@.service": _engine(), "neuron-pd-proxy.service": _proxy()}


def _engine() -> str:
    """Instance i is the machine's engine i; engines start one after the other."""
    service = [
        f"EnvironmentFile=-{SETTINGS}/machine.env",
        f"EnvironmentFile={SETTINGS}/engine.env",
        f"ExecStartPre=/bin/sh -c 'sleep $$(({STAGGER_SECONDS} * %i))'",
        f"ExecStart={PROGRAM} launch --index %i --exec -- $VLLM_ARGS",
    ]
    start = STOP_SECONDS + STAGGER_SECONDS * MOST_ENGINES
    return engine_unit("neuron-pd engine %i", service, start, f"{SETTINGS}/engine.env")


def _proxy() -> str:
    service = [
        "Type=exec",
        "DynamicUser=yes",
        "StateDirectory=neuron-pd",
        "Environment=XDG_STATE_HOME=/var/lib",
        f"LoadCredential=control-token:{SETTINGS}/control-token",
        f"Environment={TOKEN_FILE_ENV}=%d/control-token",
        f"Environment=NEURON_PD_PROXY_DRAIN_SECONDS={DRAIN_SECONDS}",
        f"EnvironmentFile=-{SETTINGS}/machine.env",
        f"EnvironmentFile={SETTINGS}/proxy.env",
        f"ExecStart={PROGRAM} proxy",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "LimitNOFILE=1048576",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "Restart=on-failure",
        "RestartSec=2",
        f"TimeoutStopSec={DRAIN_SECONDS + 10}",
    ]
    return _unit("neuron-pd proxy", f"{SETTINGS}/proxy.env", service)


def _unit(description: str, condition: str | None, service: Sequence[str]) -> str:
    return "\n".join(
        [
            "[Unit]",
            f"Description={description}",
            "Wants=network-online.target",
            "After=network-online.target",
            f"PartOf={TARGET_NAME}",
            *([f"ConditionPathExists={condition}"] if condition else []),
            "",
            "[Service]",
            *service,
            "SyslogIdentifier=%N",  # `neuron-pd logs` tells units apart by it
            "",
            "[Install]",
            f"WantedBy={TARGET_NAME}",
            "",
        ]
    )
