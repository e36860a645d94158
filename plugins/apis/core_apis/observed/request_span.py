"""The trace span of one prompt: its attributes, and its end.

Owns: `RequestSpan`, names and values of attributes. Never does: send (`Tracing` does), or measure: the times are those
of the outputs. Called by: the server, with every output of each prompt, if traces are wanted.

Attributes have OpenTelemetry's names for generative models, and in addition vLLM's names where these differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestMetrics, RequestOutput
from core_frontend.api.pooling_params import PoolingParams

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

NS = 1_000_000_000

REQUEST_VALUES: Mapping[str, Callable[[SamplingParams], Any]] = {
    "gen_ai.request.temperature": lambda params: params.temperature,
    "gen_ai.request.top_p": lambda params: params.top_p,
    "gen_ai.request.top_k": lambda params: params.top_k,
    "gen_ai.request.max_tokens": lambda params: params.max_tokens,
    "gen_ai.request.n": lambda params: params.n,
    "gen_ai.request.choice.count": lambda params: params.n if params.n > 1 else None,
    "gen_ai.request.seed": lambda params: params.seed,
    "gen_ai.request.frequency_penalty": lambda params: params.frequency_penalty or None,
    "gen_ai.request.presence_penalty": lambda params: params.presence_penalty or None,
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
"""Child spans of a request's own span."""


class RequestSpan:
    """The span of one prompt until its end. Feed every output (or `drop` it), then call `close`.

    parent: the trace that it belongs to.
    answer_id: as the client sees it; one answer may have several prompts.
    model_name: as it is served.
    detailed: whether its phases are spans of their own.
    """

    def __init__(
        self,
        tracer: Tracer,
        parent: Context,
        request_id: str,
        answer_id: str,
        params: SamplingParams | PoolingParams,
        model_name: str,
        *,
        detailed: bool,
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._begin = time.time()
        self._detailed = detailed
        self._num_tokens = 0
        self._reasons: dict[int, str] = {}
        self._last: RequestOutput | None = None
        self._is_open = True
        self._attributes: dict[str, Any] = {
            "gen_ai.request.id": request_id,
            "gen_ai.operation.name": _operation(answer_id, params),
            "gen_ai.provider.name": "core",
            "gen_ai.response.id": answer_id,
            "gen_ai.request.model": model_name,
            "gen_ai.response.model": model_name,
        }
        self._num_choices = 1
        if isinstance(params, SamplingParams):
            self._num_choices = params.n
            self._attributes |= _request_values(params)

    def update(self, output: RequestOutput) -> None:
        """Process `output`, a delta or the final one; after the last one the span is sent."""
        for completion in output.outputs:
            self._num_tokens += len(completion.token_ids)
            if completion.finish_reason is not None:
                self._reasons[completion.index] = completion.finish_reason
        self._last = output
        if output.finished:
            self._send(output.metrics.last_token_time or time.time(), failed="error" in self._reasons.values())

    def drop(self) -> None:
        """Drop the span: the prompt never ran."""
        self._is_open = False

    def close(self, *, failed: bool = False) -> None:
        """End the span.

        A prompt without a last output was abandoned by its client, or `failed`; its choices say which.
        """
        if not self._is_open:
            return
        for index in range(self._num_choices):
            self._reasons.setdefault(index, "error" if failed else "abort")
        self._send(time.time(), failed=failed)

    def _send(self, end: float, *, failed: bool) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        self._is_open = False
        times = self._last.metrics if self._last is not None else RequestMetrics()
        begin = times.arrival_time or self._begin
        span = self._tracer.start_span(
            "llm_request",
            context=self._parent,
            kind=SpanKind.SERVER,
            attributes=self._attributes | self._answer_values(),
            start_time=_ns(begin),
        )
        if failed:
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", "_OTHER")
        if self._detailed:
            inside = set_span_in_context(span)
            for phase, (start, stop) in PHASES.items():
                if _seconds(times, start, stop) is None:
                    continue
                inner = self._tracer.start_span(phase, context=inside, start_time=_ns(getattr(times, start)))
                inner.end(_ns(getattr(times, stop)))
        span.end(_ns(max(begin, end)))

    def _answer_values(self) -> dict[str, Any]:
        """Return the attributes from the outputs."""
        reasons = [self._reasons[index] for index in sorted(self._reasons)]
        values: dict[str, Any] = {
            "gen_ai.response.finish_reasons": reasons,
            "gen_ai.usage.completion_tokens": self._num_tokens,
            "gen_ai.usage.output_tokens": self._num_tokens,
        }
        if self._last is None:
            return values
        num_prompt_tokens = len(self._last.prompt_token_ids)
        num_cached_tokens = self._last.num_cached_tokens
        values["gen_ai.usage.prompt_tokens"] = num_prompt_tokens
        values["gen_ai.usage.input_tokens"] = num_prompt_tokens
        values["gen_ai.usage.cached_tokens"] = num_cached_tokens
        values["gen_ai.usage.cache_read.input_tokens"] = num_cached_tokens
        for name, (start, stop) in TIMES.items():
            seconds = _seconds(self._last.metrics, start, stop)
            if seconds is not None:
                values[name] = seconds
        return values


def _operation(answer_id: str, params: SamplingParams | PoolingParams) -> str:
    """Return OpenTelemetry's word for the requested operation."""
    if isinstance(params, PoolingParams):
        return "embeddings"
    return "text_completion" if answer_id.startswith("cmpl-") else "chat"


def _request_values(params: SamplingParams) -> dict[str, Any]:
    """Return the attributes from the request's parameters."""
    values: dict[str, Any] = {}
    for name, value_of in REQUEST_VALUES.items():
        value = value_of(params)
        if value is not None:
            values[name] = value
    return values


def _seconds(times: RequestMetrics, start: str, end: str) -> float | None:
    """Return the seconds between two times; None while one of them is unknown."""
    first: float = getattr(times, start)
    last: float = getattr(times, end)
    if not first or not last:
        return None
    return max(0.0, last - first)


def _ns(seconds: float) -> int:
    return int(seconds * NS)
