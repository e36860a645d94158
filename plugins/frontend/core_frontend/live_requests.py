"""The live requests of one client: their queue places, outputs and readers.

Owns: `LiveRequests`, which keeps queue, output states, streams and recorders in step. Never does: talk to an engine.
Called by: `AsyncEngine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest, FinishReason
from core_frontend.api.outputs import RequestOutput
from core_frontend.output_processor import OutputProcessor, ProcessedOutputs
from core_frontend.prompts.input_processor import ProcessedInput
from core_frontend.queue.limit import queue_limit
from core_frontend.recording import Recorder
from core_frontend.streams import RequestStream, RequestStreams
from core_tokens.tokenizer import Tokenizer


class LiveRequests:
    """The live requests of one engine.

    states:  the outputs of each request so far.
    streams: the readers of the outputs.
    queue:   the limit on waiting requests, with their number.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer) -> None:
        texts = None if tokenizer.refusal else tokenizer
        self.states = OutputProcessor(texts, config.scheduler.stream_interval)
        self.streams = RequestStreams()
        self.queue = queue_limit(config.scheduler)
        self._recorders: dict[str, Recorder] = {}

    def __len__(self) -> int:
        return len(self.states)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.states

    @contextmanager
    def open(self, entry: ProcessedInput) -> Iterator[RequestStream]:
        """Open the stream of a new request. Raises RequestError if its id is in use, or if too many wait."""
        first = entry.requests[0]
        request_id = first.request_id
        with self.streams.open(request_id) as stream:
            self.queue.enter({request_id: len(first.prompt_token_ids)}, flex=first.flex)
            self.states.add(entry)
            try:
                yield stream
            finally:
                self.queue.end(request_id)
                self._recorders.pop(request_id, None)

    def recalled(self, entry: ProcessedInput, recorder: Recorder) -> list[EngineRequest]:
        """Repeat the recorded outputs of a request, and record those that follow; return the choices that are not
        finished.
        """
        request_id = entry.requests[0].request_id
        recorder.begin(entry.requests[0].seed)
        for step in recorder.past:
            outputs = [msgspec.structs.replace(output, request_id=request_id) for output in step]
            self.streams.deliver(self.states.process(outputs).outputs)
        # A request with recorded outputs has its first output already, so it does not wait.
        if recorder.past:
            self.queue.leave(request_id)
        self._recorders[request_id] = recorder
        state = self.states.find(request_id)
        return [] if state is None else state.resumed()

    def take(self, message: EngineOutputs) -> ProcessedOutputs:
        """Deliver a message of the engine to the readers of its outputs."""
        if self.queue.forecast is not None:
            self.queue.forecast.stepped()
        for news in message.outputs:
            # With its first tokens a request no longer waits.
            if news.start == 0:
                self.queue.leave(news.request_id)
        if self._recorders:
            self._record(message.outputs)
        processed = self.states.process(message.outputs)
        self.streams.deliver(processed.outputs)
        return processed

    def forget(self, request_id: str, reason: FinishReason, sentence: str | None = None) -> list[RequestOutput]:
        """Drop a request; return its last output, which is not delivered."""
        return self.states.abort([request_id], reason, sentence)

    def end(self, error: EngineDeadError) -> None:
        """End every stream with this error."""
        self.streams.end(error)

    def _record(self, outputs: Sequence[EngineOutput]) -> None:
        """Pass the outputs of recorded requests to their recorders."""
        news: dict[str, list[EngineOutput]] = {}
        for output in outputs:
            if output.request_id in self._recorders:
                news.setdefault(output.request_id, []).append(output)
        for request_id, own in news.items():
            self._recorders[request_id].record(own)
