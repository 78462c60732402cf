"""Pods by label, against an API server that lists, watches, forgets and breaks off as the real one does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from neuron_pd.launcher.formats.kubernetes import kubernetes
from neuron_pd.launcher.serve import plan
from neuron_pd.proxy.engines import Role, Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.kubernetes import Access, Kubernetes, member_of
from neuron_pd.proxy.pools.source import Member, Members, SourceError
from tests.fakes.kubernetes import FakeKubernetes, pod
from tests.launcher.engines import request


@pytest.fixture
async def api() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as api:
        yield api


def source(api: FakeKubernetes, account: Path, selector: str = "") -> Kubernetes:
    (account / "token").write_text(f"{api.token}\n")
    (account / "namespace").write_text("serving")
    return Kubernetes("", selector, Access(api.url, account))


def named(members: Members) -> list[str]:
    return sorted(f"{member.role} {member.target.origin.url}" for member in members)


async def test_joins_changes_and_leaves_are_followed(api: FakeKubernetes, tmp_path: Path) -> None:
    await api.apply("p-0", "prefill", ip="10.0.0.1")
    watch = source(api, tmp_path).watch()
    assert named(await anext(watch)) == ["prefill http://10.0.0.1:8100"]
    await api.apply("d-0", "decode", phase="Pending", ip=None)
    await api.apply("d-0", "decode", ip="10.0.0.2")
    assert named(await anext(watch)) == ["decode http://10.0.0.2:8200", "prefill http://10.0.0.1:8100"]
    await api.apply("p-0", "prefill", ip="10.0.0.1", deleting=True)
    assert named(await anext(watch)) == ["decode http://10.0.0.2:8200"]
    await api.delete("d-0")
    assert named(await anext(watch)) == []
    listed, *watched = [query for _, query in api.requests]
    assert listed == {"labelSelector": "neuron-pd/role in (prefill, decode)"}
    assert [query["resourceVersion"] for query in watched] == ["101"]
    assert watched[0]["allowWatchBookmarks"] == "true"


async def test_labels_decide(api: FakeKubernetes, tmp_path: Path) -> None:
    await api.apply("p-0", "prefill", ip="10.0.0.1")
    await api.apply("p-1", "prefill", ip="10.0.0.2", labels={"app": "other"})
    await api.apply("x", "router", ip="10.0.0.3")
    watch = source(api, tmp_path, "app=qwen").watch()
    assert named(await anext(watch)) == ["prefill http://10.0.0.1:8100"]
    await api.apply("p-0", "prefill", ip="10.0.0.1", labels={"app": "other"})
    assert named(await anext(watch)) == []


async def test_a_watch_that_ends_goes_on_where_it_was(api: FakeKubernetes, tmp_path: Path) -> None:
    api.watch_seconds = 0.05
    watch = source(api, tmp_path).watch()
    assert named(await anext(watch)) == []
    following = asyncio.ensure_future(anext(watch))
    while len(api.requests) < 4:  # noqa: ASYNC110 - a list, and watches that the server ended
        await asyncio.sleep(0.01)
    await api.apply("d-0", "decode", ip="10.0.0.2")
    assert named(await following) == ["decode http://10.0.0.2:8200"]
    assert sum("watch" not in query for _, query in api.requests) == 1


@pytest.mark.parametrize("as_status", [False, True])
async def test_a_version_that_is_gone_means_list_anew(api: FakeKubernetes, tmp_path: Path, as_status: bool) -> None:
    api.gone_as_status = as_status
    api.watch_seconds = 0.05
    await api.apply("p-0", "prefill", ip="10.0.0.1")
    watch = source(api, tmp_path).watch()
    assert named(await anext(watch)) == ["prefill http://10.0.0.1:8100"]
    await api.delete("p-0")
    await api.apply("p-1", "prefill", ip="10.0.0.9")
    await api.compact()
    assert named(await anext(watch)) == ["prefill http://10.0.0.9:8100"]
    assert sum("watch" not in query for _, query in api.requests) == 2


async def test_an_api_that_breaks_off_or_refuses(api: FakeKubernetes, tmp_path: Path) -> None:
    watch = source(api, tmp_path).watch()
    await anext(watch)
    following = asyncio.ensure_future(anext(watch))
    while len(api.requests) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await api.cut()
    with pytest.raises(SourceError, match="the Kubernetes API gives no answer"):
        await following
    api.forbid = True
    with pytest.raises(SourceError, match="answers 403: pods is forbidden"):
        await anext(source(api, tmp_path).watch())
    (tmp_path / "token").write_text("rotated")
    with pytest.raises(SourceError, match="answers 401: Unauthorized"):
        await anext(Kubernetes("", "", Access(api.url, tmp_path)).watch())


async def test_the_token_is_read_anew(api: FakeKubernetes, tmp_path: Path) -> None:
    api.watch_seconds = 0.05
    watch = source(api, tmp_path).watch()
    await anext(watch)
    api.token = "rotated"
    (tmp_path / "token").write_text("rotated")
    await api.apply("d-0", "decode", ip="10.0.0.2")
    assert named(await anext(watch)) == ["decode http://10.0.0.2:8200"]


async def test_outside_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SourceError, match="not in a Kubernetes pod"):
        await anext(Kubernetes().watch())
    with pytest.raises(SourceError, match="service account's token"):
        await anext(Kubernetes("serving", "", Access("http://127.0.0.1:1", tmp_path)).watch())
    with pytest.raises(SourceError, match=r"service account's ca\.crt"):
        await anext(Kubernetes("serving", "", Access("https://127.0.0.1:1", tmp_path)).watch())


def test_in_a_cluster() -> None:
    assert Access.in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}).url == (
        "https://10.0.0.1:6443"
    )
    assert Access.in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("changes", "url", "kv_host"),
    [
        ({}, "http://10.0.0.1:8200", "10.0.0.1"),
        ({"ports": [{"containerPort": 5600}, {"name": "http", "containerPort": 9}]}, "http://10.0.0.1:9", "10.0.0.1"),
        ({"annotations": {"neuron-pd/port": "77", "neuron-pd/kv-host": "10.1.0.1"}}, "http://10.0.0.1:77", "10.1.0.1"),
        ({"ports": []}, None, None),
        ({"annotations": {"neuron-pd/port": "http"}}, None, None),
        ({"phase": "Succeeded"}, None, None),
        ({"labels": {"neuron-pd/role": "router"}}, None, None),
    ],
)
def test_what_a_pod_says(changes: dict[str, object], url: str | None, kv_host: str | None) -> None:
    member = member_of(pod("d-0", "decode", **{"ip": "10.0.0.1", **changes}))
    if url is None:
        assert member is None
    else:
        assert member is not None
        assert (member.role, member.target.origin.url, member.target.kv_host) == (Role.DECODE, url, kv_host)


@pytest.mark.parametrize("role", list(Role))
def test_the_pods_that_launch_makes_are_found(role: Role) -> None:
    spec = plan(request("cpu", role.value, host="0.0.0.0", image="vllm:1"))
    *_, deployment = yaml.safe_load_all(kubernetes([spec]))
    template = deployment["spec"]["template"]
    running = {**template, "metadata": {**template["metadata"], "uid": "u", "name": "n"}}
    member = member_of({**running, "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    assert member == Member(role, Target(Origin("10.0.0.1", spec.port), "10.0.0.1"))
