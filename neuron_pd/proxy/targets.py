"""Reading engines from what a person typed."""

from collections.abc import Collection, Sequence

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Target
from neuron_pd.proxy.http import Origin

Targets = tuple[Target, ...]


def from_options(
    prefill: Sequence[str], decode: Sequence[str], kv_hosts: Sequence[str], found: Collection[str] = ()
) -> tuple[Targets, Targets]:
    """P's and D's engines. UsageError for a URL that is none, an empty pool, or an engine named twice.

    The pools in `found` may be empty: their engines are looked up elsewhere.
    """
    for name, urls in (("prefill", prefill), ("decode", decode)):
        if not urls and name not in found:
            raise UsageError(f"no {name} engine given: add --{name} http://HOST:PORT")
    hosts = dict(_kv_host(text) for text in kv_hosts)
    pools = tuple(_pool(option, urls, hosts) for option, urls in (("--prefill", prefill), ("--decode", decode)))
    for target in pools[0]:
        if any(target.origin == other.origin for other in pools[1]):
            raise UsageError(f"{target.origin.url} is given as --prefill and as --decode: they must be two engines")
    named = {target.origin for pool in pools for target in pool}
    for origin in hosts:
        if origin not in named:
            raise UsageError(f"--kv-host names {origin.url}, which is neither --prefill nor --decode")
    return pools[0], pools[1]


def _pool(option: str, urls: Sequence[str], kv_hosts: dict[Origin, str]) -> Targets:
    if bare := [url for url in urls if ":" not in url]:
        raise UsageError(f"{option} {bare[0]!r} is not a URL: write {option} http://HOST:PORT")
    origins = [Origin.parse(url) for url in urls]
    for origin in origins:
        if origins.count(origin) > 1:
            raise UsageError(f"{option} {origin.url} is given twice")
    return tuple(Target(origin, kv_hosts.get(origin, origin.host)) for origin in origins)


def _kv_host(text: str) -> tuple[Origin, str]:
    url, separator, host = text.rpartition("=")
    if not separator or not url or not host or "/" in host:
        raise UsageError(f"--kv-host {text!r}: write URL=HOST, for example http://10.0.0.5:8200=10.1.0.5")
    return Origin.parse(url), host
