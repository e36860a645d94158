"""Reading the results of a step.

Owns: new tokens, ends, errors, and the outputs that report them. Never does: plan. Called by: `Scheduler.finish`.

Sequences that decoded one token and have nothing else to report are read at once, as arrays, and are sent as
`TokenColumns`. Reading them one after the other gives the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.api.messages import NO_TOKENS, EngineOutput, FinishReason, TokenColumns
from core.api.step_plan import Int32Array, StepResult
from core.scheduler.running import DecodeView
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.state import SchedulerState
from core.scheduler.step import Step
from core.scheduler.stopping import append_tokens, stop_reason


@dataclass(slots=True)
class StepOutputs:
    """The outputs of a step, for clients.

    records: outputs of sequences that report more than a token.
    tokens:  outputs of all others, in columns.
    """

    records: list[EngineOutput] = field(default_factory=list)
    tokens: TokenColumns = NO_TOKENS


class ResultReader:
    """Reader of one step's result, created by `Scheduler.finish`. `run` is called once."""

    def __init__(self, state: SchedulerState, step: Step, result: StepResult, *, vectorized: bool = True) -> None:
        self.state = state
        self.step = step
        self.plan = step.plan
        self.result = result
        self.outputs = StepOutputs()
        self._vectorized = vectorized

    def run(self) -> StepOutputs:
        """Read all rows and return the outputs; sequences that have left since the plan was made are skipped."""
        self.outputs.records = self.state.take_reports()
        num_decodes = self.step.num_decodes
        view = self.step.decodes
        if view is not None and self._is_plain(num_decodes):
            newest = self.result.token_ids[:num_decodes].tolist()
            self._read_together(view, newest)
            if self.step.chunks:
                token_ids = self._chunk_tokens(num_decodes)
                self._read_chunks(num_decodes, token_ids)
            return self.outputs
        token_ids = self.result.tokens()
        if view is not None:
            slots = self.plan.slots[:num_decodes].tolist()
            lens = self.plan.query_lens[:num_decodes].tolist()
            for sequence, slot, num_tokens in zip(view.sequences, slots, lens, strict=True):
                self._read(sequence, slot, num_tokens, token_ids.get(slot), completes=True)
        self._read_chunks(num_decodes, token_ids)
        return self.outputs

    def _is_plain(self, num_decodes: int) -> bool:
        """Whether all decodes still run, got one token each in order, and none failed or has drafts."""
        state = self.state
        result = self.result
        if not self._vectorized or state.seats.suspects or not self.step.one_each:
            return False
        # Counting departures replaces a look at every slot: while none has left, each row is still the sequence of the plan.
        has_lost_some = self.step.num_departures != state.running.num_departures
        if has_lost_some or result.errors or result.more_token_ids or result.num_proposed:
            return False
        if result.same_slots:
            return True
        planned = self.plan.slots[:num_decodes]
        answered = result.slots[:num_decodes]
        return np.array_equal(answered, planned)

    def _chunk_tokens(self, num_decodes: int) -> dict[int, list[int]]:
        """Tokens of the chunks that sampled, by slot; one each."""
        slots = self.result.slots[num_decodes:].tolist()
        token_ids = self.result.token_ids[num_decodes:].tolist()
        return {slot: [token_id] for slot, token_id in zip(slots, token_ids, strict=True)}

    def _read_chunks(self, num_decodes: int, token_ids: dict[int, list[int]]) -> None:
        slots = self.plan.slots[num_decodes:].tolist()
        for chunk, slot in zip(self.step.chunks, slots, strict=True):
            self._read(chunk.sequence, slot, chunk.num_tokens, token_ids.get(slot), completes=chunk.completes)

    def _read_together(self, view: DecodeView, token_ids: list[int]) -> None:
        """Append one token to each sequence of the view, and build the outputs."""
        for known, token_id in zip(view.token_lists, token_ids, strict=True):
            known.append(token_id)
        count = len(token_ids)
        # From the plan, not from the running set, whose lengths may already include a later step in flight.
        computed = self.plan.num_computed[:count]
        at_limit = computed >= view.last_computed
        ended = self._ended(view, token_ids, at_limit)
        records = self._rows_with_records(view, ended)
        starts = computed + view.start_offset
        tokens = self.result.token_ids[:count].astype(np.int32, copy=False)
        if not records:
            self.outputs.tokens = _columns(view.handles, starts, tokens)
            return
        rest = np.ones(count, bool)
        rest[records] = False
        self.outputs.tokens = _columns(view.handles[rest], starts[rest], tokens[rest])
        for row in records:
            sequence = view.sequences[row]
            slot = int(view.slots[row])
            start = int(starts[row])
            reason = ended.get(row)
            output = self._output(sequence, slot, start, [token_ids[row]], reason)
            self.outputs.records.append(output)
            if reason is not None:
                self._finish(sequence, output, reason)

    def _ended(self, view: DecodeView, token_ids: list[int], at_limit: NDArray[np.bool_]) -> dict[int, FinishReason]:
        """Rows that end with their new token, and why. A stop token takes precedence over the limit."""
        ended: dict[int, FinishReason] = {}
        # One set operation for the batch: hardly any step has a stop token, so that rows are rarely looked at.
        stop_ids = self.state.running.stop_ids.keys()
        if not stop_ids.isdisjoint(token_ids):
            for row, token_id in enumerate(token_ids):
                sequence = view.sequences[row]
                if token_id not in sequence.stop_token_ids:
                    continue
                if len(sequence.token_ids) > sequence.min_stop_length:
                    ended[row] = "stop"
        limited = at_limit.nonzero()[0]
        for row in limited.tolist():
            ended.setdefault(row, "length")
        return ended

    def _rows_with_records(self, view: DecodeView, ended: dict[int, FinishReason]) -> list[int]:
        """Rows that report more than a token, in order."""
        rows = {*ended, *view.without_handle}
        told = self.result.logprobs.keys() | self.result.facts.keys()
        if told:
            slots = view.slots.tolist()
            rows.update(row for row, slot in enumerate(slots) if slot in told)
        return sorted(rows)

    def _read(
        self, sequence: SequenceState, slot: int, num_tokens: int, token_ids: list[int] | None, *, completes: bool
    ) -> None:
        """Read one sequence: `num_tokens` were computed at `slot`, up to its last known token if `completes`."""
        # With several steps in flight a sequence may have been preempted and started again since.
        has_left = sequence.status is not SequenceStatus.RUNNING
        if has_left or sequence.first_step > self.step.number:
            return
        state = self.state
        result = self.result
        state.current = sequence
        if slot in result.errors:
            self._fail(sequence, result.errors[slot])
            return
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs += result.prompt_logprobs.get(slot, ())
        if not completes:
            sequence.num_pending -= num_tokens
            return
        if not token_ids:
            self._end_without_token(sequence, slot)
            return
        may_have_drafts = len(token_ids) > 1 or result.num_verified
        if may_have_drafts and not state.drafts.accept(slot, self.plan, result, len(token_ids)):
            self._fail(sequence, "The worker returned more tokens than were proposed; see the engine's log.")
            return
        self._take_tokens(sequence, slot, token_ids)

    def _take_tokens(self, sequence: SequenceState, slot: int, token_ids: list[int]) -> None:
        """Append the tokens that a sequence sampled, report them, and record the proposals for its next step."""
        state = self.state
        start = sequence.num_output_tokens
        num_computed = sequence.num_computed_tokens
        reason = append_tokens(sequence, token_ids)
        # All but the newest token are computed. This also drops the keys and values of rejected drafts.
        sequence.num_pending = 1
        num_drafts = self.result.num_verified.get(slot, 0)
        if state.kv.states.can_roll_back and len(token_ids) <= num_drafts:
            # The state includes the rejected drafts, so the next step begins where this one did.
            sequence.num_computed_tokens = num_computed
            sequence.is_rolled_back = True
        # The plan has counted one token already.
        state.running.length[slot] += len(token_ids) - 1
        output = self._output(sequence, slot, start, token_ids, reason)
        self.outputs.records.append(output)
        state.seats.clear(sequence)
        if reason is not None:
            self._finish(sequence, output, reason)
        elif self.plan.draft_budget or self.plan.num_drafts or self.result.num_proposed:
            is_newest = int(state.running.length[slot]) == len(sequence.token_ids)
            state.drafts.settle(sequence, self.plan, self.result, is_newest=is_newest)

    def _end_without_token(self, sequence: SequenceState, slot: int) -> None:
        """End a pooled sequence, which samples nothing; any other sequence without a token is an error of the worker."""
        pooled = self.result.pooled.get(slot)
        if pooled is None:
            self._fail(sequence, "The worker returned no token for this sequence; see the engine's log.")
            return
        output = self.state.end(sequence, "stop", None, keep_cached=True)
        output.pooled = pooled
        self.outputs.records.append(output)

    def _output(
        self, sequence: SequenceState, slot: int, start: int, token_ids: list[int], reason: FinishReason | None
    ) -> EngineOutput:
        # They are sent once, with the first output.
        prompt_logprobs = sequence.prompt_logprobs
        sequence.prompt_logprobs = None
        # Positional arguments take half the time of named ones, and many of these may be made in a step.
        return EngineOutput(
            *sequence.key,
            start,
            token_ids,
            self.result.logprobs.get(slot),
            prompt_logprobs,
            reason,
            None,  # stop_reason
            sequence.num_cached_tokens,
            sequence.request.handle,
            sequence.record,
            facts=self.result.facts.get(slot, b""),
        )

    def _finish(self, sequence: SequenceState, output: EngineOutput, reason: FinishReason) -> None:
        """Drop the tokens after the end, set the stop reason, and release the sequence."""
        num_kept = sequence.num_output_tokens - output.start
        output.token_ids = output.token_ids[:num_kept]
        if output.logprobs is not None:
            output.logprobs = output.logprobs[:num_kept]
        if reason == "stop":
            output.stop_reason = stop_reason(sequence)
        else:
            output.stop_reason = self.state.limits.why_full(len(sequence.token_ids))
        self.state.release(sequence)

    def _fail(self, sequence: SequenceState, sentence: str) -> None:
        """End a sequence whose row failed; the values that the step wrote are not trusted."""
        self.outputs.records.append(self.state.end(sequence, "error", sentence, keep_cached=False))


def _columns(handles: NDArray[np.int64], starts: Int32Array, token_ids: Int32Array) -> TokenColumns:
    """Pack arrays with one item for each sequence as bytes, the form in which they are sent."""
    return TokenColumns(handles.tobytes(), starts.tobytes(), token_ids.tobytes())
