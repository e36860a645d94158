"""The live audit of an engine.

Owns: `Audit`, an observer: which row of which step and which ended answer is computed again, the spare blocks for that, the
share of time that it takes, and what follows from a difference. Never does: compute or compare (`row` and `ended` do). Called
by: the engine core.

A difference of a row fails its step: its sequences are computed again, each alone, and nothing of it reaches a client or the
prefix cache. A difference of an ended answer empties the prefix cache, and live sequences start over. Three within an hour end
the engine, as a death does: its owner starts another one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from random import SystemRandom
from typing import Self

import msgspec

from core.api.errors import ConfigError, EngineDeadError
from core.api.sequence_record import SequenceRecord
from core.api.stats import SchedulerStats
from core.api.step_plan import NewSequence
from core.engine.observer import Engine, EngineObserver, EngineStart
from core.engine.step_queue import StepQueue
from core.scheduler.sequence import SequenceState
from core.scheduler.step import Step
from core_observers.engine.audit import dump
from core_observers.engine.audit.ended import UNCHANGING, EndedAnswers
from core_observers.engine.audit.executor import AuditedExecutor
from core_observers.engine.audit.row import AuditedRow, Difference
from core_observers.engine.audit.settings import AuditSettings
from core_observers.families.audit_metrics import CLEAN, CLEAN_ANSWERS
from core_observers.own_directory import own_directory

logger = logging.getLogger(__name__)

MOST_BLOCKS = 64
"""Blocks that an audit may write. Rows that write more, or more than are free, are not audited."""
MOST_MISMATCHES = 3
WINDOW_S = 3600.0


class Audit(EngineObserver):
    """The audit of one engine. clock: returns seconds. chance: chooses; None: nobody can predict it."""

    def __init__(
        self,
        settings: AuditSettings,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._chance = SystemRandom().random if chance is None else chance
        self._counts: Counter[str] = Counter()
        self._times: deque[float] = deque(maxlen=MOST_MISMATCHES)
        self._is_cache_damaged = False
        self._step: Step = Step()
        self._record: SequenceRecord | None = None
        self._directory = None if settings.dump is None else own_directory("--audit-dump", settings.dump)

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the audit, if `--audit-share` is given."""
        given = start.config.audit
        return cls(msgspec.convert(given, AuditSettings)) if given else None

    def attach(self, engine: Engine) -> None:
        """Put the audited executor in the place of the executor."""
        self._engine = engine
        self._executor = AuditedExecutor(engine.executor, self._note_row, self._note_clean)
        engine.queue.executor = self._executor  # type: ignore[assignment]
        self._ended = EndedAnswers(engine, self._executor, self._note_answer, self._note_clean_answer)

    def before_first(self) -> None:
        """Refuse a device with a queue of its own, whose steps cannot be computed again between two others."""
        if type(self._engine.queue) is not StepQueue:
            raise ConfigError(
                ["--audit-share: this device has a queue of steps of its own, which cannot be audited; leave it out."]
            )

    def before_step(self) -> None:
        """Have live sequences start over with an empty cache after a difference of an ended answer."""
        if self._is_cache_damaged:
            self._is_cache_damaged = False
            self._engine.sequences.start_over()
            self._engine.scheduler.reset_prefix_cache()

    def calling(self, method: str) -> None:
        """Drop what is computed again before the engine changes."""
        if method and method not in UNCHANGING:
            self._ended.drop()

    def submitted(self, step: Step) -> None:
        """Choose a row of a step, or none."""
        self._executor.row = None
        if not self._is_chosen():
            return
        plan = step.plan
        sequences = step.sequences()
        if not sequences or plan.transfers is not None or plan.copies or plan.moved_states:
            return
        index = int(self._chance() * len(sequences))
        self._executor.row = self._row(step, index, sequences[index])
        if self._executor.row is not None:
            self._step, self._record = step, sequences[index].record

    def finished(self, step: Step) -> None:
        """Choose among the answers that have ended."""
        self._ended.finished(step, self._is_chosen)

    def report(self, stats: SchedulerStats) -> None:
        """Add the counts to the statistics."""
        stats.audits = dict(self._counts)

    def _is_chosen(self) -> bool:
        done = self._executor
        most = self._settings.budget * (done.seconds + done.audit_seconds)
        return self._chance() < self._settings.share and done.audit_seconds <= most

    def _row(self, step: Step, index: int, sequence: SequenceState) -> AuditedRow | None:
        """Return a row as it is before its step; None where it cannot be computed again."""
        plan, request = step.plan, sequence.request
        slot, count, computed = int(plan.slots[index]), int(plan.query_lens[index]), int(plan.num_computed[index])
        used = {*self._executor.used.difference(plan.removed), *(new.slot for new in plan.new)}
        free = next((each for each in range(self._engine.config.scheduler.max_num_seqs) if each not in used), None)
        asks_more = request.pooling is not None or request.params.prompt_logprobs is not None or request.media
        if free is None or asks_more or slot in plan.num_drafts:
            return None
        kv = self._engine.scheduler.kv
        # Nothing is allocated before the audit is over, so blocks that are free now are free until then.
        spare = kv.pool.allocate(min(MOST_BLOCKS, kv.pool.num_free))
        kv.pool.free(spare)
        written: list[int] = []
        tables: list[list[int]] = []
        for rule, table in zip(kv.growth, sequence.block_ids, strict=True):
            first, last = 0, len(table) - 1
            if rule.holds_slots:
                first, last = computed // kv.block_size, (computed + count - 1) // kv.block_size
            own = spare[len(written) : len(written) + last + 1 - first]
            if len(own) < last + 1 - first or last >= len(table):
                return None
            written += table[first : last + 1]
            tables.append([*table[:first], *own, *table[last + 1 :]])
        outputs = sequence.token_ids[sequence.num_prompt_tokens :]
        again = NewSequence(free, request, outputs, computed, tables, sequence.max_length)
        return AuditedRow(slot, free, count, written, spare[: len(written)], again)

    def _note_clean(self) -> None:
        self._counts[CLEAN] += 1
        if self._record is not None:
            _count(self._record, CLEAN)

    def _note_clean_answer(self) -> None:
        self._counts[CLEAN_ANSWERS] += 1

    def _note_row(self, row: AuditedRow, found: Difference) -> None:
        """Report a difference of a row. Raises EngineDeadError for the third difference within an hour."""
        again = row.sequence
        request, first = again.request, again.num_computed_tokens
        for sequence in self._step.sequences():
            if sequence.record is not None:
                _count(sequence.record, found.kind)
        logger.error(
            "An audit found another %s for a row of request '%s' when it was computed again alone (%d tokens after %d). The "
            "step is discarded and its sequences are computed again.",
            found.kind,
            request.request_id,
            row.num_tokens,
            first,
        )
        known = [*request.prompt_token_ids, *again.output_token_ids]
        self._note(dump.Place(request.request_id, first, row.num_tokens, len(row.written), known), found)

    def _note_answer(self, place: dump.Place, found: Difference) -> None:
        """Report a difference of an ended answer. Raises EngineDeadError for the third difference within an hour."""
        what = "another token" if found.kind == "answer" else "other keys, values or states in the cache"
        logger.error(
            "An audit found %s when the answer to request '%s', which has ended, was computed again without the cache (%d "
            "tokens after %d). The prefix cache is emptied, and live requests are computed again.",
            what,
            place.request_id,
            place.num_tokens,
            place.first,
        )
        self._is_cache_damaged = True
        self._note(place, found)

    def _note(self, place: dump.Place, found: Difference) -> None:
        """Count a difference and keep both sides. Raises EngineDeadError for the third one within an hour."""
        self._counts[found.kind] += 1
        now = self._clock()
        self._times.append(now)
        if self._directory is not None:
            try:
                numerics = self._engine.executor.numerics
                path = dump.write(self._directory, place, found, numerics, ids=self._settings.dump_ids)
                logger.error("Both sides are in %s.", path)
            except OSError as error:
                logger.error("Both sides of the mismatch could not be written: %s", error)
        if len(self._times) == MOST_MISMATCHES and now - self._times[0] <= WINDOW_S:
            raise EngineDeadError(
                f"Audits found {MOST_MISMATCHES} mismatches within an hour; what this engine computes cannot be trusted."
            )


def _count(record: SequenceRecord, kind: str) -> None:
    record.audits[kind] = record.audits.get(kind, 0) + 1
