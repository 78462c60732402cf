"""Spans of a turn and its legs, in OpenTelemetry: `turn`, and below it `acquire`, `prefill` and `decode`.

The client's `traceparent` is the parent of the turn, and each engine is sent the one of its leg, so that vLLM's own
spans (`--otlp-traces-endpoint`) hang below. Spans hold engines, times, tokens and reasons; nothing of a prompt or a
client. Without an endpoint nothing is traced, and `traceparent` passes through as it came.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from neuron_pd import __version__
from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.http import Header, Request

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanProcessor
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

CONTEXT_HEADERS = (b"traceparent", b"tracestate")


class Span(Protocol):
    """A piece of work: used as a context manager, an exception marks it as failed. `headers` name it to an engine."""

    headers: Sequence[Header]

    def at(self, engine: Engine) -> None:
        """The engine that does it."""

    def note(self, **values: str | int | float) -> None:
        """Facts, as attributes under `neuron_pd.`."""

    def leg(self, name: str) -> "Span":
        """A part of it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None: ...


class Tracing(Protocol):
    def turn(self, request: Request) -> Span:
        """The span of one request; takes its trace headers out where the legs get their own."""

    def close(self) -> None:
        """Send what is waiting."""


class NoSpan:
    """Nothing is traced."""

    __slots__ = ()
    headers: Sequence[Header] = ()

    def at(self, engine: Engine) -> None:
        """Not kept."""

    def note(self, **values: str | int | float) -> None:
        """Not kept."""

    def leg(self, name: str) -> "NoSpan":
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Not kept."""


NO_SPAN = NoSpan()


class NoTracing:
    """Nothing is traced."""

    def turn(self, request: Request) -> NoSpan:
        return NO_SPAN

    def close(self) -> None:
        """There is nothing."""


class OpenTelemetrySpan:
    """A span of OpenTelemetry's SDK."""

    __slots__ = ("_context", "_span", "_tracer", "headers")

    def __init__(self, tracer: "Tracer", name: str, context: "Context", client: bool) -> None:
        from opentelemetry.propagate import inject
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._tracer = tracer
        self._span: OtelSpan = tracer.start_span(name, context, SpanKind.CLIENT if client else SpanKind.SERVER)
        self._context = set_span_in_context(self._span, context)
        carrier: dict[str, str] = {}
        inject(carrier, self._context)
        self.headers: Sequence[Header] = [(name.encode(), value.encode()) for name, value in carrier.items()]

    def at(self, engine: Engine) -> None:
        self._span.set_attributes({"server.address": engine.origin.host, "server.port": engine.origin.port})

    def note(self, **values: str | int | float) -> None:
        self._span.set_attributes({f"neuron_pd.{name}": value for name, value in values.items()})

    def leg(self, name: str) -> "OpenTelemetrySpan":
        return OpenTelemetrySpan(self._tracer, name, self._context, client=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from opentelemetry.trace import Status, StatusCode

        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR, str(error)[:200]))
        self._span.end()


class OpenTelemetry:
    """Spans go to `processor` from a thread of its own."""

    def __init__(self, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({SERVICE_NAME: "neuron-pd-proxy", SERVICE_VERSION: __version__})
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("neuron_pd.proxy", __version__)

    def turn(self, request: Request) -> OpenTelemetrySpan:
        from opentelemetry.propagate import extract

        carrier = {name.decode(): value.decode("latin-1") for name in CONTEXT_HEADERS if (value := request.get(name))}
        request.headers = [header for header in request.headers if header[0] not in CONTEXT_HEADERS]
        return OpenTelemetrySpan(self._tracer, "turn", extract(carrier), client=False)

    def close(self) -> None:
        self._provider.shutdown()


def to_endpoint(url: str | None) -> Tracing:
    """Tracing to an OTLP/HTTP endpoint, or none. UsageError when OpenTelemetry is not installed.

    What else there is to set (headers, sampler, batch sizes) is read from OpenTelemetry's own environment variables.
    """
    if url is None:
        return NoTracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'neuron-pd[otel]'") from error
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--otlp-traces-endpoint {url!r}: write http://HOST:4318/v1/traces")
    return OpenTelemetry(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
