"""docs/metrics.md: what the proxy and the engines count."""

import asyncio
from collections.abc import Iterator

from ci.docs.text import table, template
from neuron_pd.core.metrics import COUNTERS, GAUGES, HISTOGRAMS, NAME
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.metrics import Counter, Histogram, Metrics
from neuron_pd.proxy.settings import Listen, Settings

PROXY = "neuron_pd_proxy_"
COLUMNS = ("name", "type", "labels", "what")
Row = tuple[str, str, str, str]


def page() -> str:
    return template("metrics").format(
        proxy=table(COLUMNS, sorted(_proxy())), engines=table(COLUMNS, sorted(_engines()))
    )


def _proxy() -> Iterator[Row]:
    metrics = asyncio.run(_of_a_proxy())
    for member in vars(metrics).values():
        if isinstance(member, Counter):
            yield f"`{member.name.removeprefix(PROXY)}_total`", "counter", ", ".join(member.labels), member.text
        elif isinstance(member, Histogram):
            yield f"`{member.name.removeprefix(PROXY)}`", "histogram", "", member.text
    for gauge in metrics.gauges:
        yield f"`{gauge.name.removeprefix(PROXY)}`", "gauge", ", ".join(gauge.labels), gauge.text


async def _of_a_proxy() -> Metrics:
    """Its gauges are made when it starts."""
    async with Proxy(Settings(listen=Listen(port=0))) as proxy:
        return proxy.metrics


def _engines() -> Iterator[Row]:
    for name, (text, labels) in COUNTERS.items():
        yield f"`{NAME.format(name)}_total`", "counter", ", ".join(labels), text
    for name, (text, _) in HISTOGRAMS.items():
        yield f"`{NAME.format(name)}`", "histogram", "", text
    for name, text in GAUGES.items():
        yield f"`{NAME.format(name)}`", "gauge", "", text
