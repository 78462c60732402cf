import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from neuron_pd.launcher.formats.shell import shell
from neuron_pd.launcher.serve import ServeSpec, serve_spec
from tests.launcher.formats.recording import hostile, recorder, run_as_shell

MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def p5en(**given_: Any) -> ServeSpec:
    hosts = {"prefill_host": "10.0.0.1", "decode_host": "10.0.0.2"}
    return serve_spec("prefill", given_.pop("model", "owner/name"), **{"instance": "p5en.48xlarge", **hosts, **given_})


@MANY
@given(name=hostile, model=hostile, host=hostile, extra=hostile, token=hostile)
def test_the_text_runs_as_it_is(name: str, model: str, host: str, extra: str, token: str, tmp_path: Path) -> None:
    recorder(tmp_path)
    spec = p5en(
        served_name=name, model=f"owner/{model}", prefill_host=f"h{host}", token_file=Path(f"/{token}"),
        extra_args=("--extra", f"={extra}"),
    )  # fmt: skip
    ((argv, environment),) = run_as_shell(shell([spec]), tmp_path)
    expected = spec.argv()[1:]
    position = expected.index("--kv-transfer-config") + 1
    config, wanted = json.loads(argv.pop(position)), json.loads(expected.pop(position))
    assert config.pop("engine_id") != wanted.pop("engine_id")
    assert config == wanted
    assert argv == expected
    assert {key: environment[key] for key in spec.environment()} == spec.environment()


def test_each_run_has_an_engine_id_of_its_own(tmp_path: Path) -> None:
    recorder(tmp_path)
    text = shell([p5en()])
    ids = {json.loads(run_as_shell(text, tmp_path)[0][0][-1])["engine_id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(name.startswith("prefill-") for name in ids)


def test_upstreams_engine_id_stays(tmp_path: Path) -> None:
    recorder(tmp_path)
    ((argv, _),) = run_as_shell(shell([p5en(connector="upstream")]), tmp_path)
    assert json.loads(argv[-1])["engine_id"] == "prefill-engine-001"


def test_several_engines_start_one_after_the_other_and_do_not_collide(tmp_path: Path) -> None:
    recorder(tmp_path)
    recorder(tmp_path, "sleep").write_text('#!/bin/sh\necho "$1" >> "$(dirname "$0")/slept"\n')
    specs = [p5en(instance="trn2.48xlarge", model="Qwen/Qwen3-8B", engines=3, index=index) for index in range(3)]
    text = shell(specs).replace("wait -n ", "wait ")  # the recorders end at once; all of them are to be heard
    started = run_as_shell(text, tmp_path)
    assert sorted(got["NEURON_VISIBLE_DEVICES"] for _, got in started) == ["0-3", "4-7", "8-11"]
    assert sorted(argv[argv.index("--port") + 1] for argv, _ in started) == ["8100", "8101", "8102"]
    assert len({got["VLLM_NIXL_SIDE_CHANNEL_PORT"] for _, got in started}) == 3
    assert sorted((tmp_path / "slept").read_text().split()) == ["10", "20"]


def test_when_one_engine_ends_the_others_are_stopped(tmp_path: Path) -> None:
    recorder(tmp_path).write_text('#!/bin/sh\ncase "$*" in *8100*) exit 3;; *) exec sleep 600;; esac\n')
    specs = [p5en(model="Qwen/Qwen3-8B", engines=2, index=index) for index in range(2)]
    with pytest.raises(Exception, match="exit status 3"):
        run_as_shell(shell(specs), tmp_path)


@MANY
@given(host=hostile)
def test_a_note_is_a_comment_whatever_is_in_it(host: str, tmp_path: Path) -> None:
    spec = p5en(prefill_host=f"h{host}", model=f"owner/{host}")
    assert all("\n" not in note for note in spec.notes)
    before = shell([spec]).split("export FI_PROVIDER")[0]
    assert before.count("\n") == len(spec.notes)
