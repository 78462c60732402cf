"""What builds images: the Packer template, Image Builder's documents, the Dockerfiles."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_pd.profiles import Profiles
from tests.launch_assets.awstoe import DOCUMENT
from tests.launch_assets.tools import ROOT, tool

IMAGE = ROOT / "launch" / "image"
PACKER = IMAGE / "neuron-pd.pkr.hcl"
COMPONENT = yaml.safe_load((IMAGE / "imagebuilder" / "component.yaml").read_text())
PIPELINE = IMAGE / "imagebuilder" / "pipeline.yaml"
DOCKERFILES = sorted(IMAGE.glob("Dockerfile.*"))
REFERENCE = re.compile(r"\{\{ (\w+) \}\}")


def shellcheck(text: str) -> None:
    command = [tool("shellcheck"), "--shell=bash", "--exclude=SC2046", "-"]  # a file of variables is meant to be split
    subprocess.run(command, input=text, text=True, check=True)


def packer() -> dict[str, Any]:
    hcl2 = pytest.importorskip("hcl2")
    with PACKER.open() as stream:
        body: dict[str, Any] = hcl2.load(stream)
    return body


def named(blocks: list[dict[str, Any]]) -> set[str]:
    return {name.strip('"') for block in blocks for name in block if not name.startswith("__")}


def test_packers_variables_are_declared_and_used() -> None:
    body, text = packer(), PACKER.read_text()
    assert named(body["variable"]) == set(re.findall(r"\bvar\.(\w+)", text))
    assert named(body["data"]) == set(re.findall(r"\bdata\.([\w-]+)\.\w+", text))


def test_what_packer_runs_is_shell() -> None:
    (build,) = packer()["build"]
    shells = [block['"shell"'] for block in build["provisioner"] if '"shell"' in block]
    lines = [line.strip('"') for shell in shells for line in shell["inline"]]
    conditional = [re.fullmatch(r'\$\{var\.doctor \? "(.*)" : "true"\}', line) for line in lines]
    shellcheck("\n".join(found[1] if found else line for found, line in zip(conditional, lines, strict=True)))
    assert sum(found is not None and found[1].endswith("neuron-pd doctor") for found in conditional) == 1


def test_packer_itself_reads_the_template() -> None:
    program = tool("packer")
    subprocess.run([program, "fmt", "-check", "-diff", PACKER], check=True)
    version = subprocess.run([program, "version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (1, 7):
        pytest.skip(f"{version.strip()} knows no data sources: only the form was checked")
    subprocess.run([program, "validate", "-syntax-only", PACKER], check=True)


def test_the_component_is_a_document_of_image_builder() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(COMPONENT, DOCUMENT)
    for phase in COMPONENT["phases"]:
        names = [step["name"] for step in phase["steps"]]
        assert len(set(names)) == len(names)
    said = {name for key in ("parameters", "constants") for entry in COMPONENT[key] for name in entry}
    assert set(REFERENCE.findall(json.dumps(COMPONENT["phases"]))) == said


def test_the_components_commands_are_shell() -> None:
    values = {name: body.get("value", "s3://bucket/key") for key in ("parameters", "constants")
              for entry in COMPONENT[key] for name, body in entry.items()}  # fmt: skip
    for phase in COMPONENT["phases"]:
        for step in phase["steps"]:
            if step["action"] == "ExecuteBash":
                text = "\n".join(step["inputs"]["commands"])
                shellcheck(REFERENCE.sub(lambda found: str(values[found[1]]), text))


def test_cloudformation_takes_the_pipeline() -> None:
    subprocess.run([tool("cfn-lint"), PIPELINE], check=True)


class _Tagged(yaml.SafeLoader):
    """CloudFormation's short forms as plain values."""


def _plain(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    return loader.construct_sequence(node) if isinstance(node, yaml.SequenceNode) else None


_Tagged.add_multi_constructor("!", _plain)


def test_the_recipe_gives_the_component_what_it_asks_for() -> None:
    stack = yaml.load(PIPELINE.read_text(), _Tagged)
    (used,) = stack["Resources"]["Recipe"]["Properties"]["Components"]
    asked = {name for entry in COMPONENT["parameters"] for name in entry}
    assert {parameter["Name"] for parameter in used["Parameters"]} == asked


def test_all_start_from_the_same_dlami() -> None:
    stack = yaml.load(PIPELINE.read_text(), _Tagged)
    parameter = stack["Parameters"]["ParentParameter"]["Default"]
    assert f'"{parameter}"' in PACKER.read_text()
    assert parameter in (ROOT / "docs" / "trainium.md").read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_a_dockerfile_passes_hadolint(path: Path) -> None:
    subprocess.run([tool("hadolint"), path], check=True)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_a_dockerfile_copies_what_is_needed(path: Path) -> None:
    accelerator = path.suffix.removeprefix(".")
    copied = re.findall(r"^COPY (.*) /src/\S*$", path.read_text(), re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    assert [name for name in names if not (ROOT / name).exists()] == []
    # What the wheel is made of, and what the script takes from the checkout.
    project = (ROOT / "pyproject.toml").read_text()
    needed = {
        "pyproject.toml",
        "neuron_pd",
        "launch",
        *re.findall(r'^(?:readme = |license-files = \[)"(.*?)"', project, re.M),
    }
    if accelerator == "neuron":
        needed |= set(re.findall(r'"\$source/(ci/[\w./-]+)"', (IMAGE / "provision.sh").read_text()))
    assert needed <= set(names)
    assert f"launch/image/provision.sh {accelerator} --container" in path.read_text()


def test_the_bases_are_those_of_the_profiles() -> None:
    for accelerator, instance in (("cuda", "p5en.48xlarge"), ("neuron", "trn2.48xlarge")):
        text = (IMAGE / f"Dockerfile.{accelerator}").read_text()
        assert f"ARG BASE={Profiles().instance(instance).image}\n" in text
