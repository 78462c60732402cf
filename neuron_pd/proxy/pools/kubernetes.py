"""Engines as pods with a label, listed and watched through the Kubernetes API.

    metadata.labels       neuron-pd/role: prefill | decode, as `neuron-pd launch --format k8s` prints it
    metadata.annotations  neuron-pd/port (else the container port named http, else the first one)
                          neuron-pd/kv-host (else the pod's address)

A pod is a member while it is Running, has an address and is not being deleted; whether it serves, the proxy's own
health checks say. Needs `list` and `watch` on pods for the proxy's service account, and the extra `kubernetes`.

Wire format: the API's list and watch of pods (JSON, one watch event a line), with bookmarks; 410 Gone means list anew.
"""

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Role, Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.source import Member, Members, SourceError

if TYPE_CHECKING:
    import httpx

ROLE, PORT, KV_HOST = "neuron-pd/role", "neuron-pd/port", "neuron-pd/kv-host"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_SECONDS = 300  # the server ends a watch after this long, and it is taken up where it ended
ANSWER_SECONDS = 10.0
GONE = 410


class Access(NamedTuple):
    """How to reach the API: files are read anew for each request, since tokens are rotated."""

    url: str
    account: Path = ACCOUNT

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str] | None = None) -> "Access":
        """As every pod is given it; SourceError outside a cluster."""
        environ = os.environ if environ is None else environ
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise SourceError("not in a Kubernetes pod: KUBERNETES_SERVICE_HOST is not set")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    def read(self, name: str) -> str:
        try:
            return (self.account / name).read_text().strip()
        except OSError as error:
            raise SourceError(f"cannot read the service account's {name}: {error.strerror}") from error

    def client(self) -> "httpx.AsyncClient":
        import httpx

        try:
            verify = (
                ssl.create_default_context(cafile=self.account / "ca.crt") if self.url.startswith("https") else True
            )
        except OSError as error:
            raise SourceError(f"cannot read the service account's ca.crt: {error.strerror}") from error
        timeout = httpx.Timeout(ANSWER_SECONDS, read=WATCH_SECONDS + ANSWER_SECONDS)
        return httpx.AsyncClient(base_url=self.url, verify=verify, timeout=timeout, trust_env=False)


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """Pods with the role label, and with `selector` where there is more to tell them by; "" is the own namespace."""

    namespace: str = ""
    selector: str = ""
    access: Access | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if find_spec("httpx") is None:
            raise UsageError("looking engines up in Kubernetes needs httpx: pip install 'neuron-pd[kubernetes]'")
        if any(char in self.namespace for char in "/?#% "):
            raise UsageError(f"{self.namespace!r} is not a namespace")

    @property
    def name(self) -> str:
        return f"kubernetes {self.namespace or 'own namespace'} {self.labels}"

    @property
    def labels(self) -> str:
        """The label selector that the API is asked for."""
        roles = f"{ROLE} in ({', '.join(Role)})"
        return f"{roles},{self.selector}" if self.selector else roles

    async def watch(self) -> AsyncIterator[Members]:
        import httpx

        access = self.access or Access.in_cluster()
        path = f"/api/v1/namespaces/{self.namespace or access.read('namespace')}/pods"
        try:
            async with access.client() as client:
                pods = Pods(client, access, path, self.labels)
                while True:
                    async for members in pods.until_gone():
                        yield members
        except httpx.HTTPError as error:
            raise SourceError(f"the Kubernetes API gives no answer ({type(error).__name__}: {error})") from error


class Pods:
    """The pods that match, followed from one listing until the API has forgotten where it was."""

    def __init__(self, client: "httpx.AsyncClient", access: Access, path: str, labels: str) -> None:
        self._client = client
        self._access = access
        self._path = path
        self._labels = labels
        self._pods: dict[str, Member | None] = {}
        self._version = ""

    async def until_gone(self) -> AsyncIterator[Members]:
        """The members at once and after each change; ends where they must be listed anew."""
        await self._list()
        yield self._members()
        while True:
            async for event in self._events():
                if event["type"] == "ERROR":
                    if event["object"].get("code") == GONE:
                        return
                    raise SourceError(f"the watch of pods failed: {event['object'].get('message')}")
                before = self._members()
                self._apply(event["type"], event["object"])
                if self._members() != before:
                    yield self._members()

    async def _list(self) -> None:
        response = await self._client.get(self._path, params={"labelSelector": self._labels}, headers=self._headers())
        listing = _checked(response.status_code, response.content)
        self._version = listing["metadata"]["resourceVersion"]
        self._pods = {}
        for pod in listing["items"]:
            self._apply("ADDED", pod)

    async def _events(self) -> AsyncIterator[dict[str, Any]]:
        params = {
            "labelSelector": self._labels,
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._client.stream("GET", self._path, params=params, headers=self._headers()) as response:
            if response.status_code == GONE:
                yield {"type": "ERROR", "object": {"code": GONE}}
                return
            if response.status_code != 200:
                _checked(response.status_code, await response.aread())
            rest = b""
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)

    def _apply(self, kind: str, pod: Mapping[str, Any]) -> None:
        self._version = pod["metadata"].get("resourceVersion") or self._version
        if kind == "DELETED":
            self._pods.pop(pod["metadata"]["uid"], None)
        elif kind in ("ADDED", "MODIFIED"):
            self._pods[pod["metadata"]["uid"]] = member_of(pod)

    def _members(self) -> Members:
        return tuple(member for member in self._pods.values() if member is not None)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._access.read('token')}", "accept": "application/json"}


def member_of(pod: Mapping[str, Any]) -> Member | None:
    """The engine in a pod; None while it is not up, or is going away."""
    metadata, status = pod["metadata"], pod.get("status", {})
    address, notes = status.get("podIP"), metadata.get("annotations") or {}
    if metadata.get("deletionTimestamp") or status.get("phase") != "Running" or not address:
        return None
    role = (metadata.get("labels") or {}).get(ROLE)
    port = _port(notes, pod.get("spec", {}))
    if role not in tuple(Role) or port is None:
        return None
    return Member(Role(role), Target(Origin(address, port), notes.get(KV_HOST) or address))


def _port(notes: Mapping[str, str], spec: Mapping[str, Any]) -> int | None:
    ports = [port for container in spec.get("containers", ()) for port in container.get("ports") or ()]
    named = [port["containerPort"] for port in ports if port.get("name") == "http"]
    given = notes.get(PORT) or next(iter([*named, *(port["containerPort"] for port in ports)]), None)
    text = str(given)
    return int(text) if text.isdecimal() and 0 < int(text) < 65536 else None


def _checked(status: int, body: bytes) -> Any:
    """The JSON of an answer; SourceError with the API's own words for any other than 200."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    if status != 200:
        said = answer.get("message") if isinstance(answer, dict) else None
        raise SourceError(f"the Kubernetes API answers {status}: {said or 'no reason given'}")
    return answer
