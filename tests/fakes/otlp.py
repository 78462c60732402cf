"""An OTLP/HTTP collector: a real server that takes protobuf and keeps the spans."""

import gzip
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class FakeCollector:
    """`async with FakeCollector() as collector:`; `spans` by name, `resource` as it was sent."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Any]] = {}
        self.resource: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1/traces"

    async def _take(self, request: web.Request) -> web.Response:
        assert request.headers["content-type"] == "application/x-protobuf"
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            self.resource = {one.key: one.value.string_value for one in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.setdefault(span.name, []).append(span)
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )
