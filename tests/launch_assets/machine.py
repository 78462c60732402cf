"""A Neuron machine before it is provisioned: a bare root file system with recorders of what provisioning calls."""

import hashlib
import re
import shutil
import tarfile
from pathlib import Path

from tests.launch_assets.bare_root import BareRoot
from tests.launch_assets.tools import ROOT

SCRIPT = "/src/launch/image/provision.sh"
VENV = "/opt/aws_neuronx_venv_pytorch_inference_vllm_{}/bin"
SITE = "/opt/site"
PLUGIN = f"{SITE}/.nixl_cu12.mesonpy.libs/plugins/libplugin_LIBFABRIC.so"
# A Python that knows what was installed into it; pip writes down what it is asked for.
PYTHON = f"""
case "$*" in
  *"pip --quiet list"*) echo torch==2.9.0+neuron ;;
  *" nixl=="*) mkdir -p {Path(PLUGIN).parent}; echo plugin > {PLUGIN} ;;
  *get_path*) case $0 in /usr/bin/*) echo /usr/local/bin ;; *) echo "${{0%/*}}" ;; esac ;; # as Debian has it
  *"import nixl, pathlib"*) echo {PLUGIN} ;;
  *"import nixl"*) [ -f {PLUGIN} ] ;;
  *--target*) mkdir -p /opt/neuron-pd/cuda-runtime/nvidia/cuda_runtime/lib
              echo x > /opt/neuron-pd/cuda-runtime/nvidia/cuda_runtime/lib/libcudart.so.12 ;;
esac
"""
# What is found is found in the directory that the script puts on the loader's path, and libfabric with EFA.
LDD = """
for library in libcuda.so.1 libcudart.so.12; do
  [ -e /opt/neuron-pd/lib/$library ] || echo "$library => not found"
done
[ -e /opt/amazon/efa_installed_packages ] || echo "libfabric.so.1 => not found"
"""
CC = 'while [ "$1" != -o ]; do shift; done; echo stub > "$2"; [ -f "$3" ]'
INSTALLER = """#!/bin/bash
echo "efa_installer.sh $*" >> /record
mkdir -p /opt/amazon; echo '# EFA installer version: 1.50.0' > /opt/amazon/efa_installed_packages
"""


def checkout(place: Path) -> None:
    """What provisioning takes of ours."""
    for name in ("launch", "ci/libcuda_stub.c"):
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)


def machine(place: Path) -> BareRoot:
    """With a checkout in /src, and nothing of ours installed."""
    bare = BareRoot(place)
    checkout(bare.place / "src")
    for name in ("apt-get", "ldconfig", "systemctl"):
        bare.recorder(name)
    bare.recorder("dpkg", "exit 1")
    bare.recorder("ldd", LDD)
    bare.recorder("cc", CC)
    bare.recorder("curl", 'while [ "$1" != --output ]; do shift; done; cat /efa.tar.gz > "$2"')
    bare.recorder("python3", PYTHON)
    bare.recorder("/usr/local/bin/neuron-pd", "echo neuron-pd, version 0.1.0")
    installer(bare)
    return bare


def installer(bare: BareRoot) -> None:
    """EFA's archive, and its checksum in versions.env."""
    place = bare.place.parent / "aws-efa-installer"
    place.mkdir()
    (place / "efa_installer.sh").write_text(INSTALLER)
    (place / "efa_installer.sh").chmod(0o755)
    with tarfile.open(bare.place / "efa.tar.gz", "w:gz") as archive:
        archive.add(place, "aws-efa-installer")
    digest = hashlib.sha256((bare.place / "efa.tar.gz").read_bytes()).hexdigest()
    versions = bare.place / "src/launch/image/versions.env"
    versions.write_text(re.sub(r"EFA_SHA256=.*", f"EFA_SHA256={digest}", versions.read_text()))


def dlami(bare: BareRoot, *releases: str) -> None:
    for release in releases:
        bare.recorder(f"{VENV.format(release)}/python", PYTHON)
        bare.recorder(f"{VENV.format(release)}/neuron-pd", "echo neuron-pd, version 0.1.0")
