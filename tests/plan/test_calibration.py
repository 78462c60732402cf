import json
from pathlib import Path

import pytest
import yaml

from neuron_pd.errors import UsageError
from neuron_pd.plan.calibration import Point, find, read, shipped, write
from neuron_pd.plan.turn import Quantity, Turn

from .truth import LAYOUT, calibration


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    point = Point(Quantity.TTFT, Turn(2048, 1920, held=1920), 0.125, LAYOUT)
    made = calibration(points=(point,), held_out={"turns": 4})
    write(made, tmp_path / "new" / "one.json")
    assert read(tmp_path / "new" / "one.json") == made


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "neuron-pd bench", "version": 1}', "\x00"])
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is no calibration"):
        read(path)


def test_an_unknown_coefficient_is_refused(tmp_path: Path) -> None:
    body = calibration().as_json()
    body["coefficients"]["luck"] = 1.0
    path = tmp_path / "one.json"
    path.write_text(json.dumps(body))
    with pytest.raises(UsageError, match="is no calibration"):
        read(path)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "qwen3-32b", "GLM-5-FP8", "tiny"])
def test_models_are_found_by_full_and_short_name(name: str) -> None:
    assert find(name, None).model.lower().endswith(name.lower().rpartition("/")[2])


def test_unknown_models_and_instances_name_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no calibration for model 'gpt'.*Qwen/Qwen3-32B, tiny, zai-org/GLM-5-FP8"):
        find("gpt", None)
    with pytest.raises(UsageError, match=r"no calibration on instance 'moon'.*p5en\.48xlarge"):
        find("qwen3-32b", "moon")


@pytest.mark.parametrize("each", shipped(), ids=lambda each: each.model)
def test_shipped_calibrations_say_where_everything_comes_from(each) -> None:
    assert {"coefficients", "decode", "bytes_per_token", "pool_tokens", "errors"} <= set(each.sources)
    assert all(each.sources.values())
    assert each.pool_tokens > 0


@pytest.mark.parametrize("each", shipped(), ids=lambda each: each.model)
def test_shipped_calibrations_agree_with_the_models_profiles(each) -> None:
    profiles = Path(__file__).parents[2] / "launch" / "profiles"
    profile = yaml.safe_load((profiles / f"{each.model.rpartition('/')[2]}.yaml").read_text())
    assert each.layout.bytes_per_token in profile["kv"]["bytes_per_token"].values()


def test_a_slower_link_is_the_bottleneck_and_a_faster_one_is_not() -> None:
    made = calibration()
    assert made.over(1.0).coefficients.per_byte == pytest.approx(8e-9)
    assert made.over(1000.0) == made


def test_a_band_is_two_standard_deviations_and_the_widest_where_a_group_is_unknown() -> None:
    made = calibration(errors={"ttft off": 0.05, "ttft on": 0.1})
    assert made.band("ttft off") == pytest.approx(0.1)
    assert made.band("prefill off") == pytest.approx(0.2)
