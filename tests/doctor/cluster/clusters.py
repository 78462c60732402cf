"""Fake engines behind a real proxy, examined by the doctor from a thread of its own."""

import asyncio
from typing import Any

from neuron_pd.doctor.cluster import CLUSTER
from neuron_pd.doctor.cluster.place import Cluster, Keys, look_at
from neuron_pd.doctor.examine import Result, examine
from neuron_pd.doctor.findings import Verdict
from tests.proxy import conftest as proxies


async def examined(
    cluster: proxies.Cluster, token: str | None = None, probes: Any = CLUSTER, **given: Any
) -> list[Result]:
    """What the doctor finds, once the proxy has looked at its engines again."""
    await cluster.proxy.probe.once()
    return await of([cluster.url], token=token, probes=probes, **given)


async def of(
    urls: list[str], *engines: list[str], token: str | None = None, probes: Any = CLUSTER, **given: Any
) -> list[Result]:
    """What it finds at these URLs."""
    given = {"seconds": 2.0, "self_test_seconds": 5.0, **given}

    def work() -> list[Result]:
        place: Cluster = look_at(urls, *engines, keys=Keys(token), **given)
        return examine(probes, place, 20)

    return await asyncio.to_thread(work)


def failed(results: list[Result]) -> list[Result]:
    return [result for result in results if result.finding.verdict is Verdict.FAILED]


def said(results: list[Result], probe: str) -> list[str]:
    """ "about: seen" of every finding of one probe."""
    return [f"{one.finding.about}: {one.finding.seen}" for one in results if one.probe == probe]
