from concurrent.futures import ThreadPoolExecutor

from ci.docs import metrics
from neuron_pd.core.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.proxy.test_dashboards import metrics as of_a_proxy


async def test_every_metric_of_the_proxy_is_on_the_page() -> None:
    rows = metrics_rows()
    for name in await of_a_proxy():
        base = name.removeprefix("neuron_pd_proxy_")
        assert base in rows or base.rpartition("_")[0] in rows, name


def test_every_metric_of_the_engines_is_on_the_page() -> None:
    rows = metrics_rows()
    assert {f"neuron_pd_{name}_total" for name in COUNTERS} <= rows
    assert {f"neuron_pd_{name}" for name in (*HISTOGRAMS, *GAUGES)} <= rows


def metrics_rows() -> set[str]:
    return {line.split("`")[1] for line in metrics_page().splitlines() if line.startswith("| `")}


def metrics_page() -> str:
    with ThreadPoolExecutor(1) as beside:  # it runs a loop of its own
        return beside.submit(metrics.page).result()
