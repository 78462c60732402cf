"""The engines: alive, guarded by the token that the doctor has, set up for reuse, and fit for each other."""

from collections.abc import Iterable
from typing import Final

from neuron_pd.core import fit
from neuron_pd.core.control import TOKEN_FILE_ENV, EngineInfo
from neuron_pd.core.fit import PREFILL, Problem
from neuron_pd.doctor.cluster.place import ROLES, UNWELL, Cluster, Engine
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning

SAME_TOKEN: Final = f"set {TOKEN_FILE_ENV} here to the file that the engines and the proxy have, with the same content"
# Reuse survives these.
LESSER: Final = ("KV layout", "neuron-pd")


@probe("Cluster", "proxy", "start it, or correct `--url`")
def proxy(cluster: Cluster) -> Iterable[Finding]:
    """the proxy's `/ready`: at least one engine of each role is usable, and every source of engines can be read"""
    if cluster.proxy is None:
        yield not_applicable("no proxy was named")
        return
    if cluster.proxy_down:
        yield failed(f"no answer: {cluster.proxy_down}", "start `neuron-pd proxy`, or correct --url", cluster.proxy)
        return
    engines = cluster.ready["engines"]
    usable = {role: sum(one["role"] == role and bool(one["usable"]) for one in engines) for role in ROLES}
    said = ", ".join(f"{usable[role]} of {len(cluster.of(role))} {role}" for role in ROLES)
    if cluster.ready.get("ready"):
        yield ok(f"ready: {said} usable", cluster.proxy)
    else:
        draining = "it drains; " if cluster.ready.get("draining") else ""
        yield failed(f"not ready: {draining}{said} usable", "see the engines below", cluster.proxy)
    for source in cluster.ready.get("sources", ()):
        yield warning(f"{source['source']} cannot be read: {source['what']}", "correct it in the proxy's options")


@probe("Cluster", "engines", "start the engine that is named: `neuron-pd launch --role … --exec`")
def alive(cluster: Cluster) -> Iterable[Finding]:
    """`GET /health` of every engine"""
    if not cluster.engines:
        yield not_applicable("no engine was named")
    for engine in cluster.engines:
        if not engine.down:
            yield ok("up", engine.name)
        elif engine.down.startswith(UNWELL):
            fix = "see its log; where that is neither an engine nor a proxy, correct the URL"
            yield failed(f"it is not well: {engine.down}", fix, engine.name)
        elif engine.usable and "refused" not in engine.down:
            seen = f"{engine.down} from here, and the proxy reaches it"
            yield warning(seen, "run this on the proxy's node to see the engines", engine.name)
        else:
            what = f"stopped, or not listening there: {engine.down}"
            yield failed(
                what, f"start it (`neuron-pd launch --role {engine.role or '…'} --exec`); see its log", engine.name
            )


@probe("Cluster", "control token", SAME_TOKEN)
def token(cluster: Cluster) -> Iterable[Finding]:
    """that every engine takes this control token"""
    for engine in _up(cluster):
        if engine.status not in (401, 403):
            yield ok("taken" if cluster.keys.token else "none is asked for", engine.name)
        elif cluster.keys.token:
            yield failed("wrong control token: it refuses ours", SAME_TOKEN, engine.name)
        else:
            yield failed("it asks for a control token, and there is none here", SAME_TOKEN, engine.name)


@probe("Cluster", "connector", "start it with `neuron-pd launch`; the same neuron-pd version everywhere")
def connector(cluster: Cluster) -> Iterable[Finding]:
    """that every engine has neuron-pd's connector and control path, and which versions it runs"""
    for engine in _up(cluster):
        yield from (_failed(problem, engine) for problem in _unknown(engine))
        if engine.info is not None:
            info = engine.info
            versions = f"neuron-pd {info.version}, vLLM {info.vllm}, NIXL {info.nixl}, torch {info.torch}"
            yield ok(f"{versions}, on {info.accelerator}", engine.name)


@probe("Cluster", "engine settings", "the setting that it names: `neuron-pd launch` gives all of them")
def settings(cluster: Cluster) -> Iterable[Finding]:
    """each engine's own settings: its role, bidirectional_kv_xfer, D's prefix cache, NIXL's release"""
    for engine, info in cluster.known:
        problems = list(_alone(engine, info))
        yield from (_failed(problem, engine) for problem in problems)
        if not problems:
            caching = "on" if info.prefix_caching else "off"
            yield ok(f"bidirectional, retention {info.retention}, prefix caching {caching}", engine.name)


@probe("Cluster", "P and D", "the same value on both, as it says")
def together(cluster: Cluster) -> Iterable[Finding]:
    """vLLM's release, block size, KV layout, retention, model and neuron-pd's version of each, beside the first P's"""
    known = cluster.known
    reference = next(((engine, info) for engine, info in known if engine.role == PREFILL), None)
    others = [(engine, info) for engine, info in known if reference is None or engine is not reference[0]]
    if reference is None or not others:
        yield not_applicable("it takes a prefill engine and another one that say what they are")
        return
    for engine, info in others:
        problems = list(fit.together(info, reference[1], reference[0].url))
        yield from (_failed(problem, engine) for problem in problems)
        if not problems:
            yield ok(f"fits {reference[0].url}: vLLM {info.vllm}, blocks of {info.block_size} tokens", engine.name)


@probe("Cluster", "proxy's view", "what the proxy says beside it")
def view(cluster: Cluster) -> Iterable[Finding]:
    """what the proxy has against an engine beside all this: its own token, its TTL in pin mode, draining"""
    said = {problem.what for engine in _up(cluster) for problem in _named(cluster, engine)}
    for one in cluster.ready.get("engines", ()):
        name = f"{one.get('role')} {one.get('url')}"
        seen = next((engine for engine in cluster.engines if engine.url == one.get("url")), None)
        if seen is not None and seen.down:
            continue
        for problem in one.get("problems", ()):
            if problem["what"] not in said:
                yield failed(f"the proxy says: {problem['what']}", problem["change"], name)
        if one.get("draining"):
            yield warning("the proxy gives it no new turns: it drains", "POST /neuron_pd/v1/engines/undrain", name)


PROBES: Final = (proxy, alive, token, connector, settings, together, view)


def _up(cluster: Cluster) -> list[Engine]:
    return [engine for engine in cluster.engines if not engine.down]


def _failed(problem: Problem, engine: Engine) -> Finding:
    return (warning if problem.about in LESSER else failed)(problem.what, problem.change, engine.name)


def _unknown(engine: Engine) -> Iterable[Problem]:
    """Why an engine that is up does not say what it is; a refused token is a probe of its own."""
    if engine.missing:
        yield fit.other_protocol(engine.missing)
    elif engine.status not in (200, 401, 403):
        yield fit.no_connector(engine.status or 0)


def _alone(engine: Engine, info: EngineInfo) -> Iterable[Problem]:
    return fit.alone(info, engine.role) if engine.role in ROLES else ()


def _named(cluster: Cluster, engine: Engine) -> Iterable[Problem]:
    """What other probes say of this engine."""
    yield from _unknown(engine)
    if engine.info is not None:
        yield from _alone(engine, engine.info)
        for other, info in cluster.known:
            yield from fit.together(engine.info, info, other.url)
