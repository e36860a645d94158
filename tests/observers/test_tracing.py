"""Spans of requests, as OpenTelemetry's own classes and a collector of a few lines see them."""

import http.server
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from core.api.errors import UserError
from core.api.pooling import PoolingConfig
from core_apis.observed import tracing
from core_config.served.server_config import ServerConfig, TraceSettings
from tests.apis.conftest import run_server
from tests.apis.scripted_engine import PoolingClient

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")

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
            answer = running.http.post("/v1/completions", json=body, headers=headers).json()
            running.http.post("/v1/completions", json={**body, "stream": True}, headers=headers)
            running.http.post("/v1/completions", json=body)
    spans = sent_spans(bodies)
    requests = [span for span in spans if span.name == "llm_request"]
    assert len(requests) == 3
    traced = [span for span in requests if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in traced] == [PARENT] * 2
    said = values_of(traced[0])
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.response.id"] == answer["id"]
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (3, 4)
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


@contextmanager
def grpc_collector() -> Iterator[tuple[str, list[bytes]]]:
    """OpenTelemetry's own service definition behind a gRPC server: its address, and the messages that it was sent."""
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    bodies: list[bytes] = []

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            bodies.append(request.SerializeToString())
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", bodies
    finally:
        server.stop(None).wait(5)


def values_of(span: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


def test_requests_that_fail_are_left_or_time_out_have_a_span_and_refused_ones_have_none() -> None:
    with grpc_collector() as (endpoint, bodies):
        config = ServerConfig(uvicorn_log_level="warning", traces=TraceSettings(endpoint=endpoint))
        with run_server(config) as running:
            post = running.http.post
            post("/v1/completions", json={"prompt": "FAIL", "request_id": "failed"})
            post("/v1/completions", json={"prompt": "Hi", "max_tokens": 10**6, "request_id": "refused"})
            post("/v1/completions", json={"prompt": "SLOW", "timeout": 0.1, "request_id": "late"})
            two = {"prompt": "Hi", "n": 2, "max_tokens": 4, "stream": True, "request_id": "two"}
            post("/v1/completions", json=two)
            left = {"prompt": "SLOW", "stream": True, "request_id": "left"}
            with running.http.stream("POST", "/v1/completions", json=left) as answer:
                lines = answer.iter_lines()
                next(lines)
            running.wait_idle()
    spans = {values_of(span)["gen_ai.request.id"].split("-")[1]: span for span in sent_spans(bodies)}
    reasons = {name: values_of(span)["gen_ai.response.finish_reasons"] for name, span in spans.items()}
    assert reasons == {"failed": ["error"], "late": ["timeout"], "two": ["length"] * 2, "left": ["abort"]}
    assert {name for name, span in spans.items() if span.status.code == 2} == {"failed"}
    tokens = {name: values_of(span)["gen_ai.usage.completion_tokens"] for name, span in spans.items()}
    assert tokens["two"] == 8 and tokens["left"] >= 1
    for span in spans.values():
        assert span.start_time_unix_nano < span.end_time_unix_nano


def test_the_death_of_an_engine_is_an_error_of_its_requests() -> None:
    with collector() as (endpoint, bodies):
        config = ServerConfig(uvicorn_log_level="warning", traces=TraceSettings(endpoint=endpoint))
        with run_server(config) as running:
            running.http.post("/v1/completions", json={"prompt": "DIE"})
    (span,) = sent_spans(bodies)
    assert span.status.code == 2 and values_of(span)["gen_ai.response.finish_reasons"] == ["error"]


def test_each_text_that_is_pooled_is_a_span() -> None:
    with collector() as (endpoint, bodies):
        config = ServerConfig(uvicorn_log_level="warning", traces=TraceSettings(endpoint=endpoint))
        pooling = PoolingConfig(kinds=("mean",), normalize=False, size=PoolingClient.SIZE)
        with run_server(config, client=PoolingClient, pooling=pooling) as running:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            answer = running.http.post("/v1/embeddings", json={"input": ["abba", "cd"]}, headers=headers)
            assert answer.status_code == 200
    spans = sent_spans(bodies)
    assert len(spans) == 2 and {span.trace_id.hex() for span in spans} == {TRACE}
    for span in spans:
        values = values_of(span)
        assert values["gen_ai.usage.completion_tokens"] == 0 and values["gen_ai.usage.prompt_tokens"] > 0
        assert values["gen_ai.response.finish_reasons"] == ["stop"]
        assert "gen_ai.request.temperature" not in values


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
    with pytest.raises(UserError, match=r"pip install 'core-engine-observers\[otel\]'"):
        tracing.check_tracing(settings)


def test_a_server_without_traces_does_not_import_opentelemetry() -> None:
    import subprocess

    code = "import sys, core_apis.server.launch, core_apis.app; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
