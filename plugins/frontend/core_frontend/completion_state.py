"""One completion while it is generated: tokens in, text out.

Owns: detokenization, stop strings and logprobs of a single choice. Never does: know its request's other choices. Called
by: the output processor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from core.api.messages import EngineOutput, FinishReason, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import CompletionOutput, Logprob, PositionLogprobs
from core_frontend.told_facts import ToldFacts
from core_tokens.detokenizer import IncrementalDetokenizer, MarkingDetokenizer, Span
from core_tokens.stop_strings import StopMatcher, StopStrings
from core_tokens.tokenizer import Tokenizer


class CompletionState:
    """The state of one choice.

    tokenizer: None leaves the text empty.
    stops: the request's stop strings, if any.
    marks_specials: whether special tokens stay in the text, and snapshots give their positions.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        prompt_token_ids: list[int],
        tokenizer: Tokenizer | None,
        stops: StopStrings | None,
        *,
        marks_specials: bool = False,
    ) -> None:
        self.index = index
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] | None = None
        self.cumulative_logprob: float | None = None
        if params.logprobs is not None:
            self.logprobs = []
            self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._names = tokenizer if params.detokenize else None
        self._detokenizer: IncrementalDetokenizer | None = None
        self._matcher: StopMatcher | None = None
        self._marks: MarkingDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            if marks_specials:
                self._marks = MarkingDetokenizer(tokenizer, prompt_token_ids)
                self._detokenizer = self._marks
            else:
                self._detokenizer = IncrementalDetokenizer(
                    tokenizer, prompt_token_ids, params.skip_special_tokens, params.spaces_between_special_tokens
                )
            if stops is not None:
                self._matcher = StopMatcher(stops, params.include_stop_str_in_output)
        self._reported_text = 0
        self._reported_tokens = 0
        self._facts = ToldFacts(len(prompt_token_ids))

    @property
    def finished(self) -> bool:
        """Whether this choice has ended."""
        return self.finish_reason is not None

    def is_due(self, interval: int) -> bool:
        """Whether it has ended, begun, or received `interval` tokens since the last snapshot."""
        num_new = len(self.token_ids) - self._reported_tokens
        return self.finished or num_new >= interval or (num_new > 0 and self._reported_tokens == 0)

    def update(self, output: EngineOutput) -> bool:
        """Add new tokens. Return whether a stop string ended the choice while the engine still runs it."""
        num_kept, stop = self._append_text(output)
        if output.facts:
            self._facts.add(output.facts, len(self.token_ids), num_kept)
        self.token_ids += output.token_ids[:num_kept]
        if output.logprobs is not None and self.logprobs is not None:
            self._append_logprobs(output.logprobs[:num_kept])
        if stop is not None:
            self.finish_reason = "stop"
            self.stop_reason = stop
            return output.finish_reason is None
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        return False

    def abort(self, reason: FinishReason = "abort", sentence: str | None = None) -> None:
        """End the choice here, unless it has ended. sentence: details of the reason."""
        if self.finished:
            return
        if self._detokenizer is not None:
            self._release(self._detokenizer.flush(), final=True)
        self.finish_reason = reason
        self.stop_reason = sentence

    def snapshot(self, *, delta: bool) -> CompletionOutput:
        """Return the state so far, or with `delta` the new part since the last snapshot."""
        text_from = self._reported_text if delta else 0
        tokens_from = self._reported_tokens if delta else 0
        text_to = len(self.text)
        specials: Sequence[Span] = ()
        token_ends: Sequence[int] = ()
        if self._marks is not None:
            text_to = self._whole_end(self._marks.specials)
            specials = _spans_between(self._marks.specials, text_from, text_to)
            ends = self._marks.ends[tokens_from : len(self.token_ids)]
            token_ends = [max(min(end, text_to) - text_from, 0) for end in ends]
        logprobs = self.logprobs
        if delta and logprobs is not None:  # unused from here on, and freeing all of them at the end would take long
            self.logprobs = []
        self._reported_text = text_to
        self._reported_tokens = len(self.token_ids)
        mask = self._facts.mask(tokens_from)
        experts = self._facts.experts(len(self.token_ids)) if self.finished else None
        return CompletionOutput(
            index=self.index,
            text=self.text[text_from:text_to],
            token_ids=self.token_ids[tokens_from:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=logprobs if delta or logprobs is None else logprobs.copy(),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            specials=specials,
            token_ends=token_ends,
            sampling_mask=mask,
            routed_experts=experts,
        )

    def _whole_end(self, specials: list[Span]) -> int:
        """Return the end of the text that may be shown: a special token is shown whole, even if a stop string may begin
        in it.
        """
        end = len(self.text)
        if self.finished:
            return end
        for start, stop in reversed(specials):
            if stop <= end:
                break
            end = min(start, end)
        return end

    def _append_text(self, output: EngineOutput) -> tuple[int, str | None]:
        """Detokenize. Return how many of the tokens are kept, and the stop string that was matched."""
        num_tokens = len(output.token_ids)
        if self._detokenizer is None:
            return num_tokens, None
        shown = output.token_ids
        if output.finish_reason == "stop" and not self._params.include_stop_str_in_output:
            shown = shown[:-1]
        if self._matcher is None:
            self.text += self._detokenizer.push(shown)
        else:
            for count, token in enumerate(shown, start=1):
                text = self._detokenizer.push([token])
                stop = self._release(text, matching=self._may_stop(count))
                if stop is not None:
                    return count, stop
        if output.finish_reason is None:
            return num_tokens, None
        rest = self._detokenizer.flush()
        stop = self._release(rest, matching=self._may_stop(len(shown)), final=True)
        return num_tokens, stop

    def _may_stop(self, num_new: int) -> bool:
        """Whether stop strings count: only in text after the first `min_tokens` tokens."""
        return len(self.token_ids) + num_new > self._params.min_tokens

    def _release(self, text: str, *, matching: bool = True, final: bool = False) -> str | None:
        """Add the text that no stop string can still cut; return the stop string that was matched."""
        if self._matcher is None or not matching:
            self.text += text
            return None
        released, stop = self._matcher.push(text)
        self.text += released
        if final and stop is None:
            self.text += self._matcher.flush()
        return stop

    def _append_logprobs(self, entries: list[TokenLogprobs]) -> None:
        assert self.logprobs is not None and self.cumulative_logprob is not None
        for entry in entries:
            self.logprobs.append(position_logprobs(entry, self._names))
            self.cumulative_logprob += entry.logprobs[0]


def _spans_between(spans: list[Span], begin: int, end: int) -> list[Span]:
    """Return the spans in this part of the text, relative to its start. A span across the end is truncated."""
    first = bisect_left(spans, (begin, begin))
    last = bisect_left(spans, (end, end))
    return [(start - begin, min(stop, end) - begin) for start, stop in spans[first:last]]


def position_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> PositionLogprobs:
    """Return token id → Logprob, the chosen token first; without a tokenizer no token has a text."""
    found: PositionLogprobs = {}
    for token, value, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True):
        if token in found:
            continue
        text = None if tokenizer is None else tokenizer.token_text(token)
        found[token] = Logprob(value, rank, text)
    return found
