"""The batch script, run with recorders in place of Slurm: `srun` runs its command here, on no node."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launch_assets.tools import LAUNCH

SCRIPT = LAUNCH / "slurm" / "neuron-pd.sbatch"
ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
# The steps' commands write down how they were started, then live until they are told to end, or end by themselves.
NEURON_PD = """
import json, os, pathlib, signal, sys, time
place = pathlib.Path(os.environ["PLACE"])
role = sys.argv[sys.argv.index("--role") + 1] if "--role" in sys.argv else sys.argv[1]
name = f"{role}-{os.getpid()}"
def end(number, frame):
    (place / f"{name}.ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
token = os.environ.get("NEURON_PD_CONTROL_TOKEN")
body = {"argv": sys.argv[1:], "srun": json.loads(os.environ["SRUN"]), "token": token}
(place / f"{name}.draft").write_text(json.dumps(body))
(place / f"{name}.draft").rename(place / f"{name}.json")
if os.environ.get("FAILS") == role:
    while len(list(place.glob("*.json"))) < int(os.environ["STEPS"]):
        time.sleep(0.02)
    sys.exit(7)
time.sleep(60)
"""
SRUN = """
import json, os, sys
options = sys.argv[1 : 1 + next(i for i, word in enumerate(sys.argv[1:]) if not word.startswith("--"))]
os.environ["SRUN"] = json.dumps(options)
command = sys.argv[1 + len(options):]
os.execvp(command[0], command)
"""
SCONTROL = """
import os, sys
assert sys.argv[1:] == ["show", "hostnames", "n[1-3]"]
print(*os.environ["NODES"].split(), sep="\\n")
"""
GETENT = f"""
import sys
found = {ADDRESSES!r}.get(sys.argv[2])
if found is None: sys.exit(2)
for kind in ("STREAM", "DGRAM"): print(f"{{found}} {{kind}} {{sys.argv[2]}}")
"""


@contextmanager
def job(place: Path, *argv: str, nodes: str = "n1 n2", **variables: str) -> Iterator["subprocess.Popen[str]"]:
    tools = place / "tools"
    tools.mkdir()
    for name, text in {"neuron-pd": NEURON_PD, "srun": SRUN, "scontrol": SCONTROL, "getent": GETENT}.items():
        (tools / name).write_text(f"#!{sys.executable}\n{text}")
        (tools / name).chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PLACE": str(place),
        "SLURM_JOB_NODELIST": "n[1-3]",
        "NODES": nodes,
        "STEPS": str(len(nodes.split()) + 1),
        "MODEL": "Qwen/Qwen3-32B",
        **variables,
    }
    command = ["bash", SCRIPT, *argv]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        yield run
        if run.poll() is None:
            run.terminate()


def steps(place: Path, count: int) -> list[dict[str, Any]]:
    """What was started, prefill first, then decode, then the proxy; waits until all are."""
    while len(found := list(place.glob("*.json"))) < count:
        time.sleep(0.02)
    order = {"prefill": 0, "decode": 1, "proxy": 2}
    bodies = [(order[path.name.split("-")[0]], json.loads(path.read_text())) for path in found]
    return [body for _, body in sorted(bodies, key=lambda one: (one[0], one[1]["srun"]))]


def node(step: dict[str, Any]) -> str:
    (option,) = [word for word in step["srun"] if word.startswith("--nodelist=")]
    return str(option).removeprefix("--nodelist=")


def test_each_node_gets_an_engine_and_the_first_the_proxy(tmp_path: Path) -> None:
    words = ("--retention", "pin", "--", "--seed", "7")
    with job(tmp_path, *words, nodes="n1 n2 n3", PREFILL_NODES="2") as run:
        first, second, decode, proxy = steps(tmp_path, 4)
        assert [node(step) for step in (first, second, decode, proxy)] == ["n1", "n2", "n3", "n1"]
        assert second["argv"] == ["launch", "--exec", "--role", "prefill", "--prefill-host", "10.0.0.2",
                                  "--decode-host", "10.0.0.3", *words]  # fmt: skip
        assert decode["argv"] == ["launch", "--exec", "--role", "decode", "--prefill-host", "10.0.0.1",
                                  "--decode-host", "10.0.0.3", *words]  # fmt: skip
        assert proxy["argv"] == ["proxy", "--host", "0.0.0.0", "--prefiller-hosts", "10.0.0.1,10.0.0.2",
                                 "--decoder-hosts", "10.0.0.3"]  # fmt: skip
        tokens = {step["token"] for step in (first, second, decode, proxy)}
        assert len(tokens) == 1
        assert len(tokens.pop()) > 40
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=20) == 143
    assert len(list(tmp_path.glob("*.ended"))) == 4


@pytest.mark.parametrize("fails", ["prefill", "decode", "proxy"])
def test_one_that_ends_ends_the_job(fails: str, tmp_path: Path) -> None:
    with job(tmp_path, FAILS=fails) as run:
        assert run.wait(timeout=20) == 7
    assert len(list(tmp_path.glob("*.ended"))) == 2


def test_a_token_of_the_persons_own_is_kept(tmp_path: Path) -> None:
    with job(tmp_path, NEURON_PD_CONTROL_TOKEN_FILE="/shared/token"):
        assert {step["token"] for step in steps(tmp_path, 3)} == {None}


@pytest.mark.parametrize(
    ("variables", "nodes", "message"),
    [
        ({"MODEL": ""}, "n1 n2", "set MODEL to a directory that every node has"),
        ({}, "n1", "PREFILL_NODES=1 of 1 nodes leaves a role without any"),
        ({}, "n1 n9", "n9 has no address here"),
    ],
)
def test_what_cannot_be_served_starts_nothing(
    variables: dict[str, str], nodes: str, message: str, tmp_path: Path
) -> None:
    with job(tmp_path, nodes=nodes, **variables) as run:
        _, error = run.communicate(timeout=20)
        assert run.returncode != 0
    assert message in error
    assert not list(tmp_path.glob("*.json"))


def test_neuron_pd_takes_these_options() -> None:
    from neuron_pd.cli.launch import command as launch
    from neuron_pd.cli.proxy import command as proxy

    options = {name for command in (launch, proxy) for parameter in command.params for name in parameter.opts}
    assert {"--exec", "--role", "--prefill-host", "--decode-host", "--prefiller-hosts", "--decoder-hosts"} <= options
