"""What Packer and Image Builder run on the machine that becomes an image, run in a bare root file system."""

import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch_assets.bare_root import BareRoot
from tests.launch_assets.machine import VENV, dlami, machine
from tests.launch_assets.tools import LAUNCH

IMAGE = LAUNCH / "image"
DOCTOR = "neuron-pd doctor"


@pytest.fixture
def builder(tmp_path: Path) -> BareRoot:
    """A DLAMI. The checkout comes as an archive."""
    bare = machine(tmp_path / "root")
    (bare.place / "src").rename(tmp_path / "src")
    with tarfile.open(tmp_path / "neuron-pd.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "src", ".")
    dlami(bare, "0_29_0")
    bare.tool("env")
    bare.recorder("sudo", 'exec "$@"')
    bare.recorder("cloud-init")
    return bare


def deliver(bare: BareRoot) -> None:
    shutil.copy(bare.place.parent / "neuron-pd.tar.gz", bare.place / "tmp/neuron-pd.tar.gz")


def run(bare: BareRoot, commands: list[str]) -> None:
    result = bare.run("-c", "\n".join(commands))
    assert result.returncode == 0, result.stdout + result.stderr


def test_packers_machine(builder: BareRoot) -> None:
    hcl2 = pytest.importorskip("hcl2")
    with (IMAGE / "neuron-pd.pkr.hcl").open() as stream:
        (build,) = hcl2.load(stream)["build"]
    file, *shells = build["provisioner"]
    assert file['"file"']["destination"] == '"/tmp/neuron-pd.tar.gz"'
    deliver(builder)
    for shell in shells:
        lines = [line.strip('"') for line in shell['"shell"']["inline"]]
        run(builder, ["set -e", *(re.sub(r'^\$\{var\.doctor \? "(.*)" : "true"\}$', r"\1", line) for line in lines)])
    record = builder.record()
    assert record.index("cloud-init status --wait") < record.index("apt-get update -qq")
    assert record.index(DOCTOR) > record.index("neuron-pd --version")
    assert not list((builder.place / "tmp").glob("neuron-pd*"))


def steps() -> dict[str, list[dict[str, Any]]]:
    document = yaml.safe_load((IMAGE / "imagebuilder" / "component.yaml").read_text())
    values = {"SourceUri": "s3://bucket/neuron-pd.tar.gz"}
    values |= {name: body["value"] for entry in document["constants"] for name, body in entry.items()}
    text = re.sub(r"\{\{ (\w+) \}\}", lambda found: values[found[1]], yaml.safe_dump(document["phases"]))
    return {phase["name"]: phase["steps"] for phase in yaml.safe_load(text)}


def test_image_builders_machine(builder: BareRoot) -> None:
    phases = steps()
    download, *rest = phases["build"]
    assert download["inputs"] == [{"source": "s3://bucket/neuron-pd.tar.gz", "destination": "/tmp/neuron-pd.tar.gz"}]
    deliver(builder)
    for step in [*rest, *phases["validate"]]:
        run(builder, step["inputs"]["commands"])
    assert not list((builder.place / "tmp").glob("neuron-pd*"))
    builder.record()
    for step in phases["test"]:
        run(builder, step["inputs"]["commands"])
    assert builder.record() == [DOCTOR]


def test_what_the_doctor_finds_wrong_ends_the_build(builder: BareRoot) -> None:
    shutil.copytree(builder.place.parent / "src", builder.place / "src")
    run(builder, ["bash /src/launch/image/provision.sh neuron"])
    builder.recorder(f"{VENV.format('0_29_0')}/neuron-pd", "exit 1")
    (step,) = steps()["test"]
    assert builder.run("-c", "\n".join(step["inputs"]["commands"])).returncode == 1
