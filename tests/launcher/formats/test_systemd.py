import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_pd.launcher.formats.systemd import _argument, systemd, unit
from neuron_pd.launcher.serve import ServeSpec
from tests.launcher.engines import engine
from tests.launcher.formats.recording import SPECIAL, hostile

UNQUOTE_AND_UNESCAPE = 1 << 5 | 1 << 1  # what systemd itself passes for a command line
MANY = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Words = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def parsed() -> Words:
    """systemd's own parser of command lines, where its library is here and parses as the manual page says."""
    found = sorted(Path("/usr/lib").glob("**/systemd/libsystemd-shared-*.so"))
    if not found:
        pytest.skip("systemd's library is not here")
    extract = ctypes.CDLL(str(found[0])).extract_first_word
    extract.argtypes = [ctypes.POINTER(ctypes.c_char_p)] * 2 + [ctypes.c_char_p, ctypes.c_int]

    def words(line: str) -> list[str]:
        rest, word, result = ctypes.c_char_p(line.encode()), ctypes.c_char_p(), list[str]()
        while (status := extract(ctypes.byref(rest), ctypes.byref(word), None, UNQUOTE_AND_UNESCAPE)) > 0:
            result.append((word.value or b"").decode())
        assert status == 0, line
        return result

    if words('"a\\"b" "\\x41" c') != ['a"b', "A", "c"]:
        pytest.skip("this systemd's parser is called in another way")
    return words


def lines(spec: ServeSpec, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit(spec).split("\n") if line.startswith(f"{key}=")]


@MANY
@given(name=hostile, model=hostile, host=hostile)
def test_systemd_reads_what_was_meant(name: str, model: str, host: str, parsed: Words) -> None:
    spec = engine(
        "p5en.48xlarge", model=f"owner/{model}", served_name=name, prefill_host=f"h{host}", connector="upstream"
    )
    (line,) = lines(spec, "ExecStart")
    words = [word.replace("%%", "%").replace("$$", "$") for word in parsed(line)]
    assert words[-len(spec.argv()) + 1 :] == spec.argv()[1:]
    variables = [word.replace("%%", "%") for line in lines(spec, "Environment") for word in parsed(line)]
    assert variables == [f"{name}={value}" for name, value in spec.environment().items()]


@given(words=st.lists(st.text(st.sampled_from("".join(SPECIAL)), max_size=8), max_size=4))
def test_any_words(words: list[str], parsed: Words) -> None:
    line = " ".join(_argument(word) for word in words)
    assert [word.replace("%%", "%").replace("$$", "$") for word in parsed(line)] == words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize(
    "given_", [{}, {"served_name": "a 'b' \"c\" $HOME %h \\ \n;#", "prefill_host": "h`id`"}, {"engines": 2, "index": 1}]
)
def test_systemd_accepts_the_unit(given_: dict[str, Any], tmp_path: Path) -> None:
    spec = engine("trn2.48xlarge", model="Qwen/Qwen3-8B", **given_)
    text = systemd([spec])
    names = re.findall(r"^# /etc/systemd/system/(\S+)$", text, re.MULTILINE)
    assert names == [f"neuron-pd-{spec.name}.service", "neuron-pd.target"]
    for name, body in zip(names, re.split(r"^# /etc/systemd/system/\S+$", text, flags=re.MULTILINE)[1:], strict=True):
        (tmp_path / name).write_text(body)
    paths = [tmp_path / name for name in names]
    result = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_engines_id_is_of_its_start() -> None:
    (line,) = lines(engine("p5en.48xlarge"), "ExecStart")
    assert '\\"engine_id\\":\\"prefill-${INVOCATION_ID}\\"' in line
    (line,) = lines(engine("p5en.48xlarge", connector="upstream"), "ExecStart")
    assert '\\"engine_id\\":\\"prefill-engine-001\\"' in line


def test_memory_may_be_locked_and_later_engines_wait() -> None:
    specs = [engine("trn2.48xlarge", model="Qwen/Qwen3-8B", engines=2, index=index) for index in range(2)]
    text = systemd(specs)
    assert text.count("LimitMEMLOCK=infinity") == 2
    assert text.count("ExecStartPre=/bin/sleep 10") == 1
    assert "neuron-pd-prefill-0.service" in text
    assert "neuron-pd-prefill-1.service" in text
