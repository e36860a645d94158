"""Records of sequences whose requests set `explain`.

Owns: `Recorder`: the `SequenceRecord`s of such sequences while they live. Never does: decide anything, or examine other
sequences: without such a request, the cost of a step is one check.
Called by: `SchedulerState` (transitions), the scheduler (once a step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from core.api.sequence_record import CacheMiss, SequenceRecord
from core.api.step_plan import StepResult
from core.kv.manager import KVManager
from core.kv.prefix_hit import PrefixHit
from core.scheduler.awaiting_kv import Aside
from core.scheduler.drafts import DraftRules
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.step import Step


class Recorder:
    """Records of live sequences, owned by the scheduler's state. clock: returns seconds.

    Every method ignores sequences without a record.
    """

    def __init__(self, kv: KVManager, clock: Callable[[], float]) -> None:
        self._kv = kv
        self._clock = clock
        self._num_lost: dict[SequenceState, int] = {}

    def __bool__(self) -> bool:
        """Whether any live sequence has a record."""
        return bool(self._num_lost)

    def enter(self, sequence: SequenceState) -> None:
        """Create the record of a new sequence; one adopted from another state keeps its record."""
        if not sequence.request.explain:
            return
        if sequence.record is None:
            sequence.record = SequenceRecord(entered=sequence.entered, block_size=self._kv.block_size)
        self._num_lost[sequence] = 0

    def start(self, sequence: SequenceState, hit: PrefixHit) -> None:
        """Record the start of a sequence that is about to get the blocks of `hit`."""
        record = sequence.record
        if record is None:
            return
        num_again = self._num_lost[sequence] - hit.num_tokens
        record.num_recomputed_tokens += max(num_again, 0)
        # Times and the cause of a miss belong to the first start; later ones only add recomputed tokens.
        if record.started:
            return
        record.started = self._clock()
        record.miss = self._miss(sequence, hit)
        external = {load.entry for load in hit.loads}
        awaited = {load.entry for load in hit.loads if load.was_awaited}
        record.num_disk_tokens = len(awaited) * self._kv.block_size
        record.num_memory_tokens = len(external - awaited) * self._kv.block_size

    def lose(self, sequence: SequenceState) -> None:
        """Note how many tokens of a running sequence are computed before it loses its blocks."""
        if sequence.record is not None:
            self._num_lost[sequence] = sequence.num_computed_tokens

    def end(self, sequence: SequenceState) -> None:
        """Record the end of a sequence."""
        if sequence.record is not None:
            sequence.record.ended = self._clock()
            self._num_lost.pop(sequence, None)

    def wait(self, limit: str, *, flex: bool) -> None:
        """Record why waiting sequences of a class are not in the planned step. limit: engine argument that kept them out."""
        for sequence in self._num_lost:
            if sequence.record is None or sequence.record.started or sequence.request.flex != flex:
                continue
            queue = sequence.queue
            sequence.record.waited_for = queue.waits_for(sequence) if isinstance(queue, Aside) else limit

    def count(self, step: Step, result: StepResult, drafts: DraftRules) -> None:
        """Count a step that is done; its results have not been read yet."""
        computed = list(self._among(step.sequences(), step))
        for sequence in computed:
            assert sequence.record is not None
            sequence.record.num_steps += 1
            sequence.record.drafts_off = result.proposer_off or drafts.why_none(sequence)
        if result.num_verified:
            self._count_drafts(computed, result)
        now = self._clock()
        for chunk in step.chunks:
            record = chunk.sequence.record
            if chunk.completes and record is not None and not record.first_token:
                record.first_token = now

    def _miss(self, sequence: SequenceState, hit: PrefixHit) -> CacheMiss | None:
        if self._kv.enable_prefix_caching and sequence.prompt_logprobs is not None:
            return CacheMiss(0, "prompt_logprobs")
        return self._kv.miss(sequence, hit)

    def _among(self, sequences: Iterable[SequenceState], step: Step) -> Iterable[SequenceState]:
        """Yield the sequences with a record that still have the slot that they had in the step."""
        for sequence in sequences:
            runs = sequence.status is SequenceStatus.RUNNING
            if sequence.record is not None and runs and sequence.first_step <= step.number:
                yield sequence

    def _count_drafts(self, computed: Iterable[SequenceState], result: StepResult) -> None:
        token_ids = result.tokens()
        for sequence in computed:
            num_drafts = result.num_verified.get(sequence.slot, 0)
            num_tokens = len(token_ids.get(sequence.slot, ()))
            if sequence.record is not None and num_drafts:
                sequence.record.num_drafts += num_drafts
                sequence.record.num_accepted += min(max(num_tokens - 1, 0), num_drafts)
