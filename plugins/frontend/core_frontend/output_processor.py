"""Conversion of the engine's outputs into the results for users.

Owns: the state of every live request between the engine's outputs and `RequestOutput`. Never does: send or schedule.
Called by: `LLM` and `AsyncEngine`, which pass on the aborts that it requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from core.api.messages import EngineOutput, EngineRequest, FinishReason, Resume
from core.api.sampling_params import RequestOutputKind
from core.api.step_plan import SequenceKey
from core_frontend.api.explanation import MoveUse
from core_frontend.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from core_frontend.api.pooling_outputs import PooledOutput
from core_frontend.completion_state import CompletionState
from core_frontend.explaining import Explainer
from core_frontend.prompt_logprobs import PromptLogprobs
from core_frontend.prompts.input_processor import ProcessedInput
from core_frontend.request_settings import RequestSettings
from core_frontend.request_tally import Buckets, RequestTally
from core_observers.receipts.receipt import IssuedReceipt
from core_tokens.stop_strings import StopStrings
from core_tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessedOutputs:
    """The result of one message of the engine.

    outputs: one for each request with something to report.
    stopped: choices that matched a stop string; the engine must still be asked to drop them.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    stopped: list[SequenceKey] = field(default_factory=list)


class RequestState:
    """One request and its choices. gaps: counts the times between its outputs; None: they are not counted."""

    def __init__(self, entry: ProcessedInput, tokenizer: Tokenizer | None) -> None:
        first = entry.requests[0]
        self.requests = entry.requests
        self.request_id = first.request_id
        self.prompt = entry.prompt
        self.prompt_token_ids = first.prompt_token_ids
        self.kind = first.params.output_kind
        self.metrics = RequestMetrics(arrival_time=first.arrival_time)
        self.prompt_logprobs: PromptLogprobs | None = None
        self.num_cached_tokens = 0
        self._names = tokenizer if first.params.detokenize else None
        stops = StopStrings(first.params.stop_strings) if first.params.stop_strings else None
        self._choices: dict[int, CompletionState] = {}
        for request in entry.requests:
            self._choices[request.choice] = CompletionState(
                request.choice,
                request.params,
                request.prompt_token_ids,
                tokenizer,
                stops,
                marks_specials=entry.marks_specials,
            )
        self._news: dict[int, CompletionState] = {}
        self._receipts = entry.receipts
        self.gaps: Buckets | None = None

    @property
    def finished(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.finished for choice in self._choices.values())

    def num_given(self) -> dict[int, int]:
        """Return the number of output tokens that the engine has generated so far, by choices that still run."""
        return {index: len(choice.token_ids) for index, choice in self._choices.items() if not choice.finished}

    def resumed(self, move: MoveUse | None = None) -> list[EngineRequest]:
        """Return the requests with which another engine can continue: the choices that still run.

        move: why it does; None: the engine has died.
        """
        rest: list[EngineRequest] = []
        for request in self.requests:
            choice = self._choices[request.choice]
            if choice.finished:
                continue
            past = Resume(list(choice.token_ids), self.num_cached_tokens) if choice.token_ids else None
            rest.append(msgspec.structs.replace(request, resume=past))
        return rest

    def update(self, output: EngineOutput, now: float) -> bool:
        """Add one choice's tokens at the time `now`. Return whether the engine must drop that choice."""
        choice = self._choices.get(output.choice)
        if choice is None or choice.finished:
            return False
        if output.token_ids:
            times = self.metrics
            if times.first_token_time:
                if self.gaps is not None and now > times.last_token_time:
                    self.gaps.add(now - times.last_token_time)
            else:
                times.first_token_time = now
            times.last_token_time = now
        if output.begin_time and not self.metrics.first_scheduled_time:
            self.metrics.first_scheduled_time = output.begin_time
        if output.prompt_logprobs is not None and self.prompt_logprobs is None:
            self.prompt_logprobs = PromptLogprobs(output.prompt_logprobs, self._names)
        if output.choice == 0 and output.num_cached_tokens:
            self.num_cached_tokens = output.num_cached_tokens
        before = len(choice.token_ids)
        stopped = choice.update(output)
        self.metrics.num_generation_tokens += len(choice.token_ids) - before
        self._news[output.choice] = choice
        return stopped

    def fail(self, index: int, reason: str) -> None:
        """End one choice with an error."""
        choice = self._choices[index]
        choice.finish_reason, choice.stop_reason = "error", reason
        self._news[index] = choice

    def abort(self, reason: FinishReason, sentence: str | None) -> None:
        """End every choice that still runs."""
        for index, choice in self._choices.items():
            if not choice.finished:
                choice.abort(reason, sentence)
                self._news[index] = choice

    def failed(self, sentence: str) -> RequestOutput:
        """Return a last output without text, for a request whose answer cannot be assembled.

        sentence: why, for `stop_reason`.
        """
        choices: list[CompletionOutput] = []
        for index, choice in self._choices.items():
            choice.finish_reason, choice.stop_reason = "error", sentence
            choices.append(
                CompletionOutput(index=index, text="", token_ids=[], finish_reason="error", stop_reason=sentence)
            )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=choices,
            finished=True,
            metrics=self.metrics,
        )

    def take(self, interval: int = 1) -> RequestOutput | None:
        """Return the output to show the user now, or None: final outputs come once, deltas and states when there is
        news.

        interval: number of new tokens of a choice that count as news; its first token and its end always do.
        """
        finished = self.finished
        if self.kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        if interval > 1 and not any(news.is_due(interval) for news in self._news.values()):
            return None
        delta = self.kind is RequestOutputKind.DELTA
        shown = self._news if delta else self._choices
        self._news = {}
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[shown[index].snapshot(delta=delta) for index in sorted(shown)],
            finished=finished,
            prompt_logprobs=self.prompt_logprobs,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
            receipt=self._receipt() if finished else None,
        )

    def _receipt(self) -> IssuedReceipt | None:
        """Return the receipt of the finished request; None without an issuer."""
        if self._receipts is None:
            return None
        answers = [(index, choice.token_ids, choice.finish_reason) for index, choice in self._choices.items()]
        return self._receipts.issue(self.requests[0], answers)


class PooledState(RequestState):
    """A pooling request: one output, without tokens."""

    def __init__(self, entry: ProcessedInput) -> None:
        super().__init__(entry, None)
        self._pooled: dict[int, bytes] = {}
        request = entry.requests[0]
        assert request.pooling is not None, "the request asks for vectors"
        self._num_rows = request.pooling.num_rows(len(request.prompt_token_ids))
        self._chunk = request.pooling.chunk
        self._steps = entry.steps
        self._pieces = entry.pieces
        if entry.pieces is not None:
            self.prompt_token_ids = [one for piece in entry.requests for one in piece.prompt_token_ids]

    def update(self, output: EngineOutput, now: float) -> bool:
        """Add the vectors, which come with the end, as in `RequestState`."""
        self._pooled[output.choice] = output.pooled
        return super().update(output, now)

    def take(self, interval: int = 1) -> RequestOutput | None:
        """Return the only output, at the end."""
        last = super().take(interval)
        if last is None:
            return None
        self.metrics.first_token_time = self.metrics.last_token_time = time.time()
        return self._pooled_output(last)

    def failed(self, sentence: str) -> RequestOutput:
        """Return a last output without vectors, as in `RequestState`."""
        self._pooled = {}
        return self._pooled_output(super().failed(sentence))

    def _pooled_output(self, last: RequestOutput) -> PooledOutput:
        # A text of which a piece failed has failed: its end is that of the piece.
        ends = sorted(last.outputs, key=lambda end: end.finish_reason == "stop")
        pooled = self._pooled.get(0, b"")
        if self._pieces is not None and ends[0].finish_reason == "stop":
            pooled = self._pieces.joined([self._pooled[number] for number in range(len(self._pieces.lengths))])
        return PooledOutput(
            request_id=last.request_id,
            prompt=last.prompt,
            prompt_token_ids=last.prompt_token_ids,
            outputs=ends[:1],
            finished=last.finished,
            metrics=last.metrics,
            num_cached_tokens=last.num_cached_tokens,
            pooled=pooled,
            num_rows=self._num_rows,
            chunk=self._chunk,
            steps=self._steps,
        )


class ExplainedState(RequestState):
    """A request whose user wants an explanation, which comes with its last output."""

    def __init__(self, entry: ProcessedInput, asked: RequestSettings, tokenizer: Tokenizer | None) -> None:
        super().__init__(entry, tokenizer)
        self._explainer = Explainer(asked, self.prompt_token_ids, tokenizer)

    def update(self, output: EngineOutput, now: float) -> bool:
        """Update as in `RequestState`, and store the newest record of each choice."""
        self._explainer.add(output.choice, output.record)
        return super().update(output, now)

    def resumed(self, move: MoveUse | None = None) -> list[EngineRequest]:
        """Return the requests as in `RequestState`, and note the change of engines."""
        self._explainer.resume(move)
        return super().resumed(move)

    def take(self, interval: int = 1) -> RequestOutput | None:
        """Return the output as in `RequestState`, with the explanation in the last one."""
        output = super().take(interval)
        if output is not None and output.finished:
            output.explain = self._explainer.explain(self._choices.values(), self.num_cached_tokens)
        return output


class OutputProcessor:
    """All live requests of one client.

    tokenizer:       None leaves all texts empty.
    stream_interval: see `RequestState.take`.
    tally:           request statistics; None: requests are not counted.
    num_completed:   number of requests that ended in the engine itself.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, stream_interval: int = 1, tally: RequestTally | None = None
    ) -> None:
        self.tally = tally
        self._tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._requests: dict[str, RequestState] = {}
        self.num_completed = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests.values())

    def find(self, request_id: str) -> RequestState | None:
        """Return the state of a live request."""
        return self._requests.get(request_id)

    def add(self, entry: ProcessedInput) -> None:
        """Expect outputs of a request. Its id must not be live."""
        state: RequestState
        if entry.requests[0].pooling is not None:
            state = PooledState(entry)
        elif entry.asked is None:
            state = RequestState(entry, self._tokenizer)
        else:
            state = ExplainedState(entry, entry.asked, self._tokenizer)
        if state.request_id in self._requests:
            raise ValueError(f"Request id {state.request_id!r} is live already.")
        if self.tally is not None:
            state.gaps = self.tally.gaps
        self._requests[state.request_id] = state

    def process(self, outputs: Sequence[EngineOutput]) -> ProcessedOutputs:
        """Translate one step's outputs; those of unknown requests are dropped."""
        now = time.time()
        processed = ProcessedOutputs()
        touched: dict[str, RequestState] = {}
        for output in outputs:
            state = self._requests.get(output.request_id)
            if state is None:
                continue
            touched[output.request_id] = state
            if self._update(state, output, now):
                processed.stopped.append((output.request_id, output.choice))
        num_live = len(self._requests)
        for state in touched.values():
            processed.stopped += self._collect(state, processed.outputs)
        self.num_completed += num_live - len(self._requests)
        return processed

    def abort(
        self, request_ids: Iterable[str], reason: FinishReason = "abort", sentence: str | None = None
    ) -> list[RequestOutput]:
        """End these requests here; return their last outputs.

        Unknown ids are ignored. sentence: details of the reason.
        """
        last: list[RequestOutput] = []
        for request_id in request_ids:
            state = self._requests.get(request_id)
            if state is not None:
                state.abort(reason, sentence)
                self._collect(state, last)
        return last

    def _update(self, state: RequestState, output: EngineOutput, now: float) -> bool:
        """Update one request; if its outputs cannot be translated, it fails alone.

        Return whether the engine must drop the choice.
        """
        try:
            return state.update(output, now)
        except Exception as error:
            logger.error("The outputs of request %r could not be translated.", state.request_id, exc_info=error)
            state.fail(output.choice, f"The tokens could not be turned into text ({type(error).__name__}: {error}).")
            return output.finish_reason is None

    def _collect(self, state: RequestState, into: list[RequestOutput]) -> list[SequenceKey]:
        """Add the current output of a request, if any. One that cannot be shown fails alone, with its error.

        Return the choices that the engine must drop.
        """
        given_up: list[SequenceKey] = []
        try:
            output = state.take(self._stream_interval)
        except Exception as error:
            logger.error("The answer to request %r could not be put together.", state.request_id, exc_info=error)
            given_up = [(state.request_id, choice) for choice in state.num_given()]
            output = state.failed(f"The answer could not be put together ({type(error).__name__}: {error}).")
        if output is not None:
            into.append(output)
            if output.finished:
                del self._requests[state.request_id]
                if self.tally is not None:
                    self.tally.end(output)
        return given_up
