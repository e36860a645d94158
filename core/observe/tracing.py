"""Spans of requests, sent to a collector with OTLP.

Owns: the connection to OpenTelemetry: the exporter, the spans of one request and their attributes, the context that clients
send. Never does: measure: the times are those of the outputs. Called by: the server, where an endpoint is named.

OpenTelemetry is imported when the first `Tracing` is made. Its exporter has a thread and a bounded queue of its own, so a
collector that is slow or gone costs spans, never an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from core.api.config import TraceSettings
from core.api.errors import UserError
from core.api.outputs import RequestMetrics, RequestOutput
from core.api.sampling_params import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

OVER_HTTP = "/v1/traces"
"""The path with which endpoints of OTLP over HTTP end; others are gRPC."""
MODULES = "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.exporter.otlp.proto.http"
NS = 1_000_000_000

REQUEST_VALUES: Mapping[str, Callable[[SamplingParams], Any]] = {
    "gen_ai.request.temperature": lambda params: params.temperature,
    "gen_ai.request.top_p": lambda params: params.top_p,
    "gen_ai.request.top_k": lambda params: params.top_k,
    "gen_ai.request.max_tokens": lambda params: params.max_tokens,
    "gen_ai.request.n": lambda params: params.n,
}
TIMES: Mapping[str, tuple[str, str]] = {
    "gen_ai.latency.time_in_queue": ("arrival_time", "first_scheduled_time"),
    "gen_ai.latency.time_to_first_token": ("arrival_time", "first_token_time"),
    "gen_ai.latency.time_in_model_prefill": ("first_scheduled_time", "first_token_time"),
    "gen_ai.latency.time_in_model_decode": ("first_token_time", "last_token_time"),
    "gen_ai.latency.time_in_model_inference": ("first_scheduled_time", "last_token_time"),
    "gen_ai.latency.e2e": ("arrival_time", "last_token_time"),
}
"""Seconds between two times of a request, under the names that vLLM gives them."""
PHASES: Mapping[str, tuple[str, str]] = {
    "queue": ("arrival_time", "first_scheduled_time"),
    "prefill": ("first_scheduled_time", "first_token_time"),
    "decode": ("first_token_time", "last_token_time"),
}
"""Spans inside of a request's own."""


class Tracing:
    """Sends spans. See `check_tracing` for what must be installed.

    exporter: in place of the one for the endpoint.
    """

    def __init__(self, settings: TraceSettings, model_name: str, exporter: SpanExporter | None = None) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({SERVICE_NAME: "core"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _exporter(settings.endpoint)))
        self._tracer = self._provider.get_tracer("core")
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name
        self._detailed = settings.detailed

    @contextmanager
    def following(self, headers: Mapping[str, str]) -> Iterator[None]:
        """What is done meanwhile belongs to the trace that headers `traceparent` and `tracestate` name, if they do."""
        from opentelemetry.context import attach, detach

        token = attach(self._propagator.extract(headers))
        try:
            yield
        finally:
            detach(token)

    def current(self) -> Context:
        """The trace that this is done for."""
        from opentelemetry.context import get_current

        return get_current()

    def end(
        self, parent: Context | None, request_id: str, params: SamplingParams, output: RequestOutput, num_tokens: int
    ) -> None:
        """A prompt has its last output.

        parent: see `current`.
        num_tokens: that it got in all.
        """
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        times = output.metrics
        last = times.last_token_time or times.arrival_time
        begin = _ns(times.arrival_time)
        attributes = self._attributes(request_id, params, output, num_tokens)
        span = self._tracer.start_span(
            "llm_request", context=parent, kind=SpanKind.SERVER, attributes=attributes, start_time=begin
        )
        if any(completion.finish_reason == "error" for completion in output.outputs):
            span.set_status(StatusCode.ERROR)
        if self._detailed:
            inside = set_span_in_context(span)
            for phase, (start, end) in PHASES.items():
                if _seconds(times, start, end) is None:
                    continue
                inner = self._tracer.start_span(phase, context=inside, start_time=_ns(getattr(times, start)))
                inner.end(_ns(getattr(times, end)))
        span.end(_ns(last))

    def flush(self) -> None:
        """Send what waits, for at most a second."""
        self._provider.force_flush(1000)

    def close(self) -> None:
        """Send what waits, and stop."""
        self.flush()
        self._provider.shutdown()

    def _attributes(
        self, request_id: str, params: SamplingParams, output: RequestOutput, num_tokens: int
    ) -> dict[str, Any]:
        reasons = [completion.finish_reason or "" for completion in output.outputs]
        attributes: dict[str, Any] = {
            "gen_ai.request.id": request_id,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.finish_reasons": reasons,
            "gen_ai.usage.prompt_tokens": len(output.prompt_token_ids),
            "gen_ai.usage.cached_tokens": output.num_cached_tokens,
            "gen_ai.usage.completion_tokens": num_tokens,
        }
        for name, value_of in REQUEST_VALUES.items():
            value = value_of(params)
            if value is not None:
                attributes[name] = value
        for name, (start, end) in TIMES.items():
            seconds = _seconds(output.metrics, start, end)
            if seconds is not None:
                attributes[name] = seconds
        return attributes


def check_tracing(settings: TraceSettings | None) -> None:
    """Raise UserError when traces are wanted and what sends them is not installed, or nothing can be there."""
    if settings is None:
        return
    if not settings.endpoint.startswith(("http://", "https://")):
        raise UserError(
            f"--otlp-traces-endpoint is '{settings.endpoint}'; expected a URL, such as http://localhost:4317."
        )
    for name in MODULES:
        if not _is_installed(name):
            raise UserError(
                f"--otlp-traces-endpoint needs {name}, which is not installed: pip install 'core-engine[otel]', or leave "
                "the argument out."
            )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _exporter(endpoint: str) -> SpanExporter:
    if endpoint.endswith(OVER_HTTP):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc(endpoint=endpoint, insecure=endpoint.startswith("http://"))


def _seconds(times: RequestMetrics, start: str, end: str) -> float | None:
    """Between two times; None while one of them is not known."""
    first: float = getattr(times, start)
    last: float = getattr(times, end)
    if not first or not last:
        return None
    return max(0.0, last - first)


def _ns(seconds: float) -> int:
    return int(seconds * NS)
