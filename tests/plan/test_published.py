"""The shipped calibrations of the article's two models, against every point that the article published."""

import json

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from neuron_pd.cli.plan import command
from neuron_pd.plan.calibration import find
from neuron_pd.plan.fit import fit_points

PUBLISHED = {
    ("Qwen/Qwen3-32B", 2): {
        "ttft_ms_off": 158,
        "ttft_ms_on": 122,
        "prefill_ms_off": 153,
        "prefill_ms_on": 128,
        "transfer_ms_on": 30,
    },
    ("Qwen/Qwen3-32B", 24): {
        "ttft_ms_off": 778,
        "ttft_ms_on": 460,
        "prefill_ms_off": 744,
        "prefill_ms_on": 414,
        "transfer_ms_on": 130,
    },
    ("zai-org/GLM-5-FP8", 2): {
        "ttft_ms_off": 500,
        "ttft_ms_on": 358,
        "prefill_ms_off": 500,
        "prefill_ms_on": 316,
        "transfer_ms_on": 29,
    },
    ("zai-org/GLM-5-FP8", 20): {
        "ttft_ms_off": 2334,
        "ttft_ms_on": 702,
        "prefill_ms_off": 2331,
        "prefill_ms_on": 541,
        "transfer_ms_on": 110,
    },
}
MODELS = sorted({model for model, _ in PUBLISHED})


def planned(model: str, kilotokens: int) -> dict[str, float]:
    """The row that the command prints."""
    arguments = ["--model", model, "--instance", "p5en.48xlarge", "--prompt", f"{kilotokens}k", "--json"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    (row,) = json.loads(done.output)["rows"]
    return row


def test_every_published_point_is_planned_within_10_percent() -> None:
    table = Table("model", "prompt", "milliseconds", "published", "planned", "error")
    errors = []
    for (model, kilotokens), points in PUBLISHED.items():
        row = planned(model, kilotokens)
        for name, published in points.items():
            errors.append(row[name] / published - 1)
            table.add_row(model, f"{kilotokens}k", name, f"{published:,}", f"{row[name]:,.0f}", f"{errors[-1]:+.1%}")
    Console(width=100).print(table)
    assert len(errors) == 20
    assert max(map(abs, errors)) < 0.10


@pytest.mark.parametrize("model", MODELS)
def test_a_fit_of_fewer_parameters_than_points_and_no_table_of_them(model: str) -> None:
    by = find(model, "p5en.48xlarge")
    fitted = [name for name, value in by.coefficients.as_json().items() if value]
    assert len(fitted) == 6 < len(by.points) == 10
    again = fit_points(by.points, fitted)
    for name in fitted:
        assert getattr(by.coefficients, name) == pytest.approx(getattr(again, name), rel=1e-4)


def test_two_models_agree_on_what_does_not_depend_on_the_model() -> None:
    one, other = (find(model, "p5en.48xlarge").coefficients for model in MODELS)
    assert one.read_latency == pytest.approx(other.read_latency, rel=0.05)
    assert one.prompt_per_token == pytest.approx(other.prompt_per_token, rel=0.1)


@pytest.mark.parametrize("model", MODELS)
def test_the_bandwidth_is_one_that_the_instance_has(model: str) -> None:
    by = find(model, "p5en.48xlarge")
    assert 1 / by.coefficients.per_byte < 16 * 200e9 / 8  # 16 EFA devices of 200 Gbps
