"""The part of the Kubernetes API that lists and watches pods, as a real HTTP server.

It keeps a history of versions, and behaves as the API server does: a list carries the version it was taken at; a watch
starts after the version it is given and sends what happened since, one JSON object a line; a version that was compacted
away gets 410, as a status of the request or as an event; bookmarks carry a version and nothing else; label selectors
decide what a watch sees (a pod that stops to match is DELETED for it); each request needs the bearer token.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

JSON = dict[str, Any]


@dataclass
class Event:
    version: int
    pod: JSON | None  # None: deleted
    before: JSON | None


@dataclass
class FakeKubernetes:
    """`async with FakeKubernetes() as api:`; pods are set, changed and deleted by name."""

    token: str = "service-account"
    namespace: str = "serving"
    watch_seconds: float | None = None  # a server's own limit, shorter than what is asked for
    gone_as_status: bool = False
    forbid: bool = False
    pods: dict[str, JSON] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._version = 100
        self._oldest = 0
        self._events: list[Event] = []
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[Any]] = set()
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._pods)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    # ---- what happens in the cluster

    async def apply(self, name: str, role: str, **changes: Any) -> None:
        """Create or change a pod. Fields: ip, phase, labels, annotations, ports, deleting."""
        await self._change(name, pod(name, role, **changes))

    async def delete(self, name: str) -> None:
        await self._change(name, None)

    async def compact(self) -> None:
        """Forget the history: watches from before get 410."""
        self._oldest = self._version
        self._events.clear()
        await self.cut()

    async def cut(self) -> None:
        """Break every watch off, as when an API server is replaced."""
        for task in list(self._watches):
            task.cancel()
        await asyncio.sleep(0)

    async def _change(self, name: str, new: JSON | None) -> None:
        async with self._changed:
            self._version += 1
            if new is not None:
                new["metadata"]["resourceVersion"] = str(self._version)
            before = self.pods.pop(name, None)
            if new is not None:
                self.pods[name] = new
            self._events.append(Event(self._version, new, before))
            self._changed.notify_all()

    # ---- the API

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.query)))
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.forbid or request.match_info["namespace"] != self.namespace:
            return _status(403, "pods is forbidden: User cannot list resource pods")
        if request.query.get("watch") != "1":
            items = [one for one in self.pods.values() if _matches(one, request.query["labelSelector"])]
            listing = {"kind": "PodList", "metadata": {"resourceVersion": str(self._version)}, "items": items}
            return web.json_response(listing)
        if self.gone_as_status and int(request.query["resourceVersion"]) < self._oldest:
            return _status(410, "too old resource version")
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        seconds = min(float(request.query["timeoutSeconds"]), self.watch_seconds or float("inf"))
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            async with asyncio.timeout(seconds):
                await self._send(request, response)
        except TimeoutError:
            await response.write_eof()
        finally:
            self._watches.discard(task)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        seen, selector = int(request.query["resourceVersion"]), request.query["labelSelector"]
        if seen < self._oldest:
            await _write(response, "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
            return
        while True:
            for event in [one for one in self._events if one.version > seen]:
                seen = event.version
                kind = _kind(event, selector)
                if kind is not None:
                    await _write(response, kind, event.pod if kind != "DELETED" else event.pod or event.before)
            if request.query.get("allowWatchBookmarks") == "true":
                await _write(response, "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(seen)}})
            async with self._changed:
                if self._version == seen:
                    await self._changed.wait()


def pod(name: str, role: str, **changes: Any) -> JSON:
    labels = {"neuron-pd/role": role, "app": "qwen"}
    metadata: JSON = {"name": name, "uid": f"uid-{name}", "labels": labels}
    metadata["labels"].update(changes.get("labels", {}))
    if "annotations" in changes:
        metadata["annotations"] = changes["annotations"]
    if changes.get("deleting"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = changes.get("ports", [{"containerPort": 8100 if role == "prefill" else 8200}])
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "sidecar"}, {"name": "vllm", "ports": ports}]},
        "status": {"phase": changes.get("phase", "Running"), "podIP": changes.get("ip", "127.0.0.1")},
    }


def _kind(event: Event, selector: str) -> str | None:
    now = event.pod is not None and _matches(event.pod, selector)
    then = event.before is not None and _matches(event.before, selector)
    if now:
        return "MODIFIED" if then else "ADDED"
    return "DELETED" if then else None


def _matches(one: JSON, selector: str) -> bool:
    """Set-based and equality requirements, separated by commas outside of parentheses."""
    labels = one["metadata"]["labels"]
    requirements = selector.replace(", ", "|").split(",")
    for requirement in requirements:
        if " in (" in requirement:
            name, values = requirement.rstrip(")").split(" in (")
            if labels.get(name) not in values.split("|"):
                return False
        else:
            name, value = requirement.split("=")
            if labels.get(name) != value:
                return False
    return True


async def _write(response: web.StreamResponse, kind: str, content: Any) -> None:
    await response.write(json.dumps({"type": kind, "object": content}).encode() + b"\n")


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
