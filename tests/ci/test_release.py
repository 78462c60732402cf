import re
import tomllib
from pathlib import Path

import pytest
import yaml

from ci import release
from ci.matrix.legs import ROOT
from ci.release import Clean, Unfit, check_tag, main
from neuron_pd import __version__

CHANGES = f"# Changelog\n\n## {__version__}\n"


class Light(Clean):
    """An environment as it should be, with nothing made; tests break one thing."""

    def __init__(self) -> None:
        self.said = {"--version": f"neuron-pd, version {__version__}\n", "launch": "exec vllm serve model"}
        self.has = ["click", "neuron-pd"]

    def names(self) -> list[str]:
        return self.has

    def _say(self, *arguments: str) -> str:
        return self.said.get(arguments[0], "")

    def _proxy(self) -> None:
        pass


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "neuron_pd/__init__.py"}


def test_what_has_to_name_the_version_beside_it_agrees() -> None:
    chart = yaml.safe_load((ROOT / "launch/helm/neuron-pd/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    for path in ("docs/images.md", "launch/image/imagebuilder/pipeline.yaml"):
        assert re.findall(r" Version=(\S+)", (ROOT / path).read_text()) == [__version__], path


def test_a_tag_names_the_version_and_a_part_of_the_changelog() -> None:
    check_tag(f"v{__version__}", CHANGES)
    with pytest.raises(Unfit, match=r"the tag is v9\.9\.9 and neuron_pd.__version__ is"):
        check_tag("v9.9.9", CHANGES)
    with pytest.raises(Unfit, match=f"CHANGELOG.md has no part {__version__}"):
        check_tag(f"v{__version__}", "# Changelog\n")


def test_an_environment_as_it_should_be_is_fit() -> None:
    Light().check()


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("has", ["torch", "neuron-pd"], "the light install brings torch"),
        ("said", {"--version": "neuron-pd, version 9\n"}, "--version says 'neuron-pd, version 9', not"),
        ("said", {"--version": f"neuron-pd, version {__version__}"}, "`launch` prints no serve command"),
    ],
)
def test_what_is_wrong_is_named(attribute: str, value: object, message: str) -> None:
    clean = Light()
    setattr(clean, attribute, value)
    with pytest.raises(Unfit, match=message):
        clean.check()


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="`false one` failed: status 1"):
        release._run("false", "one", cwd=tmp_path)


def test_what_cannot_be_released_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--tag", "v9.9.9", "--out", str(tmp_path / "dist")]) == 1
    assert capsys.readouterr().err.startswith("ci.release: the tag is v9.9.9")
    assert not (tmp_path / "dist").exists()
