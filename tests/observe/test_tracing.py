"""Spans of requests, as OpenTelemetry's own classes and a collector of a few lines see them."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.api.config import ServerConfig, TraceSettings
from core.api.errors import UserError
from core.observe import tracing
from tests.serving.conftest import run_server

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.headers["Content-Encoding"] is None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sent_spans(bodies: list[bytes]) -> list[Any]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []
    for body in bodies:
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                spans += scope.spans
    return spans


def test_requests_are_spans_of_the_clients_traces() -> None:
    with collector() as (endpoint, bodies):
        config = ServerConfig(uvicorn_log_level="warning", traces=TraceSettings(endpoint=endpoint, detailed=True))
        with run_server(config) as running:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"prompt": "Hi", "max_tokens": 4, "temperature": 0.5, "request_id": "mine"}
            running.http.post("/v1/completions", json=body, headers=headers)
            running.http.post("/v1/completions", json={**body, "stream": True}, headers=headers)
            running.http.post("/v1/completions", json=body)
    spans = sent_spans(bodies)
    requests = [span for span in spans if span.name == "llm_request"]
    assert len(requests) == 3
    traced = [span for span in requests if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in traced] == [PARENT] * 2
    for span in traced:
        values = {pair.key: pair.value for pair in span.attributes}
        assert values["gen_ai.request.id"].string_value.startswith("cmpl-mine")
        assert values["gen_ai.usage.prompt_tokens"].int_value == 3
        assert values["gen_ai.usage.completion_tokens"].int_value == 4
        assert values["gen_ai.request.temperature"].double_value == 0.5
        assert (
            0 <= values["gen_ai.latency.time_to_first_token"].double_value <= values["gen_ai.latency.e2e"].double_value
        )
        inner = [other for other in spans if other.parent_span_id == span.span_id]
        assert "decode" in {other.name for other in inner}
        for other in inner:
            assert span.start_time_unix_nano <= other.start_time_unix_nano <= other.end_time_unix_nano
            assert other.end_time_unix_nano <= span.end_time_unix_nano


@pytest.mark.slow
def test_a_collector_that_is_not_there_costs_no_answer() -> None:
    config = ServerConfig(uvicorn_log_level="warning", traces=TraceSettings(endpoint="http://127.0.0.1:9/v1/traces"))
    with run_server(config) as running:
        assert running.http.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.check_tracing(None)
    with pytest.raises(UserError, match="expected a URL"):
        tracing.check_tracing(TraceSettings(endpoint="localhost"))
    settings = TraceSettings(endpoint="http://localhost:4317")
    tracing.check_tracing(settings)
    monkeypatch.setattr(tracing, "MODULES", ("opentelemetry.nothing.there",))
    with pytest.raises(UserError, match=r"pip install 'core-engine\[otel\]'"):
        tracing.check_tracing(settings)


def test_a_server_without_traces_does_not_import_opentelemetry() -> None:
    import subprocess

    code = "import sys, core.serving.launch, core.serving.app; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
