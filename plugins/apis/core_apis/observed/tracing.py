"""Trace spans of requests, sent to a collector with OTLP.

Owns: the connection to OpenTelemetry: the exporter, and the context that clients send. Never does: know the content of
a span (`request_span` does). Called by: the server, if an endpoint is configured.

OpenTelemetry is imported when the first `Tracing` is made. Its exporter has a thread and a bounded queue of its own, so
a collector that is slow or gone costs spans, never an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from core.api.errors import UserError
from core.api.sampling_params import SamplingParams
from core_apis.observed.request_span import RequestSpan
from core_config.served.server_config import TraceSettings
from core_frontend.api.pooling_params import PoolingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

OVER_HTTP = "/v1/traces"
"""The path with which OTLP endpoints over HTTP end; others are gRPC."""
MODULES = "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.exporter.otlp.proto.http"


class Tracing:
    """The sender of spans. See `check_tracing` for what must be installed.

    exporter: replaces the exporter for the endpoint.
    """

    def __init__(self, settings: TraceSettings, model_name: str, exporter: SpanExporter | None = None) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        exports = logging.getLogger("opentelemetry.exporter")
        if exports.level == logging.NOTSET:  # unless the user's log configuration or another Tracing has set a level
            exports.setLevel(logging.ERROR)  # each attempt logs a warning; the one about dropped spans is enough
        resource = Resource.create({SERVICE_NAME: "core"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _exporter(settings.endpoint)))
        self._tracer = self._provider.get_tracer("core")
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name
        self._detailed = settings.detailed

    @contextmanager
    def following(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Attach work within the context to the trace that the headers `traceparent` and `tracestate` name, if any."""
        from opentelemetry.context import attach, detach

        token = attach(self._propagator.extract(headers))
        try:
            yield
        finally:
            detach(token)

    def follow(self, request_id: str, answer_id: str, params: SamplingParams | PoolingParams) -> RequestSpan:
        """Return the span of a prompt that begins now, in the current trace."""
        from opentelemetry.context import get_current

        return RequestSpan(
            self._tracer,
            get_current(),
            request_id,
            answer_id,
            params,
            self._model_name,
            detailed=self._detailed,
        )

    def flush(self) -> None:
        """Send queued spans, for at most a second."""
        self._provider.force_flush(1000)

    def close(self) -> None:
        """Send queued spans, and stop."""
        self.flush()
        self._provider.shutdown()


def check_tracing(settings: TraceSettings | None) -> None:
    """Raise UserError if traces are wanted but the exporter is not installed, or the endpoint cannot be one."""
    if settings is None:
        return
    if not settings.endpoint.startswith(("http://", "https://")):
        raise UserError(
            f"--otlp-traces-endpoint is '{settings.endpoint}'; expected a URL, such as http://localhost:4317."
        )
    for name in MODULES:
        if not _is_installed(name):
            raise UserError(
                f"--otlp-traces-endpoint needs {name}, which is not installed: pip install 'core-engine-observers[otel]', or "
                "leave the argument out."
            )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the error may name a package above it
        return False


def _exporter(endpoint: str) -> SpanExporter:
    if endpoint.endswith(OVER_HTTP):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc(endpoint=endpoint, insecure=endpoint.startswith("http://"))
