import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from ci.trial import add_options, carry_out, topology
from neuron_pd.cli import INTERRUPTED
from neuron_pd.errors import UsageError


async def finds() -> dict[str, Any]:
    return {"equal": 4}


def test_what_was_found_is_returned_and_written(tmp_path: Path) -> None:
    assert carry_out(finds(), tmp_path / "found.json") == {"equal": 4}
    assert json.loads((tmp_path / "found.json").read_text()) == {"equal": 4}


@pytest.mark.parametrize(("error", "status"), [(UsageError("port 1 is taken"), 2), (KeyboardInterrupt(), INTERRUPTED)])
def test_what_cannot_be_carried_out_ends_with_one_line(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails() -> dict[str, Any]:
        raise error

    with pytest.raises(SystemExit) as ended:
        carry_out(fails())
    assert ended.value.code == status
    assert capsys.readouterr().err == ("error: port 1 is taken\n" if status == 2 else "")


def test_engines_and_proxy_are_on_ports_in_a_row() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, "trial", 19100)
    made = topology(parser.parse_args([]), max_model_len=2048)
    assert made.run_dir == Path("results/trial")
    assert (made.proxy_port, made.prefill.port, made.decode.port) == (19100, 19101, 19102)
    assert made.prefill.flags["enable-prefix-caching"] is False
