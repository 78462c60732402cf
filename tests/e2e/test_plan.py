"""From real servers to a calibration: what records of real engines hold, and what is read out of them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from .conftest import CLI, TOKEN, Cluster

pytestmark = pytest.mark.e2e


def neuron_pd(*arguments: str) -> str:
    environment = {**os.environ, "NEURON_PD_CONTROL_TOKEN": TOKEN}
    done = subprocess.run([*CLI, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sweep_of_real_engines_makes_a_calibration_that_plans(cluster: Cluster, tmp_path: Path) -> None:
    urls = ("--url", cluster.proxy, "--prefill-url", cluster.prefill, "--decode-url", cluster.decode)
    sizes = ("--lengths", "300,1200", "--turns", "3", "--user-tokens", "60", "--reply-tokens", "8")
    neuron_pd("bench", "sweep", *urls, *sizes, "--out", str(tmp_path))
    neuron_pd("plan", "calibrate", str(tmp_path))

    made = json.loads((tmp_path / "calibration.json").read_text())
    assert (made["model"], made["instance"], made["block_size"]) == ("tiny", "cpu", 128)
    assert made["bytes_per_token"] == 2 * 8 * 4 * 64 * 4  # K and V, layers, heads, head dimension, bytes of a float32
    assert (
        0 < made["descriptors_per_block"] <= 2 * 8
    )  # a layer's K, and its V, or several blocks' that lie side by side
    assert made["pool_tokens"] > 10_000
    assert made["held_out"]["turns"] == made["held_out"]["fitted_on"] == 6
    assert all(value >= 0 for value in made["coefficients"].values())

    planned = json.loads(
        neuron_pd(
            "plan", "--calibration", str(tmp_path / "calibration.json"), "--prompt", "1k", "--reply", "8", "--json"
        )
    )
    (row,) = planned["rows"]
    assert row["reused_tokens"] == 1024
    assert row["ttft_ms_off"] > row["compute_ms_off"] > row["compute_ms_on"] > 0
