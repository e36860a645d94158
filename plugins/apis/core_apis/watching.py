"""One prompt on its way through the engine, and its observers: the meter, and the span if traces are wanted.

Owns: `PromptCall`, and the wrappers around the engine's `generate`, which are composed once for each server. Never
does: know HTTP, or queue. Called by: `core_apis.app` (builds), the run of a request's prompts (calls).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.api.errors import CoreError, RequestError
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import FIELD
from core_apis.beams import beam_outputs
from core_apis.engine_protocol import ServingEngine
from core_apis.errors import GenerationError
from core_apis.observed.request_meter import RequestMeter
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.library.beam_search import BeamSearchParams
from core_frontend.request_terms import RequestTerms
from core_observers.metrics import ServerMetrics
from core_observers.recent_requests import RecentRequest

if TYPE_CHECKING:
    from core_apis.observed.tracing import Tracing

NO_LIMIT = SamplingParams(max_tokens=None)
"""Parameters that the meter counts for a pooling request: one choice, and no token limit."""


@dataclass(frozen=True, slots=True)
class PromptCall:
    """One prompt in the form that the engine's `generate` is called with.

    prompt:     in the engine's form.
    request_id: the engine's own.
    entry:      its row among the recent requests.
    key:        the headers with the API key of its request; empty: it had none, or goes on without its connection.
    beams:      the search that it asks for; None: it is sampled.
    """

    prompt: dict[str, Any]
    params: SamplingParams | PoolingParams
    request_id: str
    terms: RequestTerms
    entry: RecentRequest
    key: Mapping[str, str] = field(default_factory=dict)
    beams: BeamSearchParams | None = None


Generate = Callable[[PromptCall], AsyncGenerator[RequestOutput, None]]


def watched(engine: ServingEngine, metrics: ServerMetrics, tracing: Tracing | None) -> Generate:
    """Return the engine's `generate` with all observers around it. tracing: None: no spans are sent."""

    def generate(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
        if call.beams is not None:
            assert isinstance(call.params, SamplingParams), "texts that are pooled have no beams"
            return beam_outputs(engine, call.prompt, call.params, call.request_id, call.terms, call.beams)
        return engine.generate(call.prompt, call.params, call.request_id, call.terms)

    return metered(generate if tracing is None else traced(generate, tracing), metrics)


def metered(generate: Generate, metrics: ServerMetrics) -> Generate:
    """Wrap `generate` to count every output. An output that reports a failure is counted, then raised as an error."""

    async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
        counted = call.params if isinstance(call.params, SamplingParams) else NO_LIMIT
        meter = RequestMeter(metrics, counted, call.entry)
        try:
            async with aclosing(generate(call)) as outputs:
                async for output in outputs:
                    meter.update(output)
                    _raise_failure(output)
                    yield output
        except RequestError:
            meter.refuse()
            raise
        finally:
            meter.close()

    return run


def traced(generate: Generate, tracing: Tracing) -> Generate:
    """Wrap `generate` to follow it with a span, also for outputs that end with a failure."""

    async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
        span = tracing.follow(call.request_id, call.entry.id, call.params)
        try:
            async with aclosing(generate(call)) as outputs:
                async for output in outputs:
                    span.update(output)
                    yield output
        except RequestError:
            span.drop()
            raise
        except CoreError:
            span.close(failed=True)
            raise
        finally:
            span.close()

    return run


def _raise_failure(output: RequestOutput) -> None:
    for completion in output.outputs:
        if completion.finish_reason == "error":
            sentence = str(completion.stop_reason)
            if sentence.startswith(FIELD):
                raise RequestError(sentence, param=FIELD, status=422, code="too_much_work")
            raise GenerationError(f"The engine could not finish this request: {completion.stop_reason or 'no details'}")
        if completion.finish_reason == "timeout":
            raise RequestError(str(completion.stop_reason), param="timeout", status=408, code="request_timeout")
