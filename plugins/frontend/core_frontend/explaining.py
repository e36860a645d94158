"""The explanation of an answer, assembled from the client's facts and the engine's records.

Owns: `Explainer`, which makes the `Explanation`. Never does: measure; the times are those of the records. Called by:
the output processor.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from core.api.sequence_record import SequenceRecord
from core_frontend.api.explanation import (
    AuditUse,
    CacheUse,
    ControlText,
    Drafts,
    Explanation,
    Limit,
    Miss,
    MoveUse,
    Times,
)
from core_frontend.completion_state import CompletionState
from core_frontend.request_settings import RequestSettings
from core_tokens.tokenizer import Tokenizer

SUMMED = ("num_preemptions", "num_recomputed_tokens", "num_drafts", "num_accepted", "num_steps")
"""Counts of a record that accumulate when another engine continues a sequence."""

MAX_CONTROL_TEXTS = 16
"""Maximum number of control tokens in the list of those spelled out in contents."""

TEXT_TOKENS = 16
"""Number of tokens shown before and after the first miss."""


class Explainer:
    """The gathered records of one request. tokenizer: None leaves texts empty."""

    def __init__(self, asked: RequestSettings, prompt_token_ids: Sequence[int], tokenizer: Tokenizer | None) -> None:
        self._asked = asked
        self._prompt = prompt_token_ids
        self._tokenizer = None if tokenizer is None or tokenizer.refusal else tokenizer
        self._records: dict[int, SequenceRecord] = {}
        self._earlier: dict[int, SequenceRecord] = {}
        self._num_restarts = 0
        self._moves: list[MoveUse] = []

    def resume(self, move: MoveUse | None = None) -> None:
        """Note that the next record of a choice is another engine's, and covers only the rest of it.

        move: the request has left its engine; None: the engine has died.
        """
        if move is None:
            self._num_restarts += 1
        else:
            self._moves.append(move)
        self._earlier = dict(self._records)

    def add(self, choice: int, record: SequenceRecord | None) -> None:
        """Store the newest record of a choice."""
        if record is None:
            return
        earlier = self._earlier.get(choice)
        self._records[choice] = record if earlier is None else _joined(earlier, record)

    def explain(self, choices: Iterable[CompletionState], num_cached_tokens: int) -> Explanation:
        """Return the explanation, once all choices have ended."""
        records = list(self._records.values())
        times = self._times(records, time.monotonic())
        return Explanation(
            times=times,
            cache=self._cache(num_cached_tokens),
            sampling=self._asked.sampling,
            limits=self._limits(choices, records, times),
            preemptions=sum(record.num_preemptions for record in records),
            recomputed_tokens=sum(record.num_recomputed_tokens for record in records),
            drafts=Drafts(
                proposed=sum(record.num_drafts for record in records),
                accepted=sum(record.num_accepted for record in records),
                off=next((record.drafts_off for record in records if record.drafts_off), None),
            ),
            steps=sum(record.num_steps for record in records),
            restarts=self._num_restarts,
            tools=self._asked.tools or None,
            control_text=self._control_text(),
            audit=_audit(records),
            moves=self._moves,
        )

    def _control_text(self) -> list[ControlText]:
        is_control = self._tokenizer is not None and self._tokenizer.allows_control
        found = list(self._asked.control_text.items())[:MAX_CONTROL_TEXTS]
        return [ControlText(text, count, "control" if is_control else "text") for text, count in found]

    def _times(self, records: Sequence[SequenceRecord], now: float) -> Times:
        begin = self._asked.begin
        entered = _earliest(record.entered for record in records)
        started = _earliest(record.started for record in records)
        first_token = _earliest(record.first_token for record in records)
        # A choice that matched a stop string ended here; its engine's record does not show that.
        ended = max((record.ended or now for record in records), default=now)
        return Times(
            preparation=_between(begin, entered),
            queue=_between(entered, started),
            prefill=_between(started, first_token),
            decode=_between(first_token, ended),
            grammar=self._asked.grammar_s,
            total=now - begin,
        )

    def _cache(self, num_cached_tokens: int) -> CacheUse:
        use = CacheUse(len(self._prompt), num_cached_tokens)
        record = self._records.get(0)
        if record is None:
            return use
        use.block_size = record.block_size
        use.from_memory = record.num_memory_tokens
        use.from_disk = record.num_disk_tokens
        use.first_miss = self._miss(record)
        return use

    def _miss(self, record: SequenceRecord) -> Miss | None:
        found = record.miss
        if found is None:
            return None
        cause = found.cause
        differs_at = found.differs_at
        if cause == "history_changed" and self._asked.first_turn:
            cause = "first_seen"
            differs_at = None
        place = found.index
        before = self._text(max(place - TEXT_TOKENS, 0), place)
        after = self._text(place, place + TEXT_TOKENS)
        return Miss(place, place // record.block_size, before, after, cause, differs_at)

    def _text(self, start: int, stop: int) -> str:
        token_ids = list(self._prompt[start:stop])
        if self._tokenizer is None or not token_ids:
            return ""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _limits(
        self, choices: Iterable[CompletionState], records: Sequence[SequenceRecord], times: Times
    ) -> list[Limit]:
        found: dict[str, Limit] = {}
        asked = self._asked
        if asked.num_cut:
            effect = f"The first {asked.num_cut} tokens of the prompt were left out."
            found["truncate_prompt_tokens"] = Limit("truncate_prompt_tokens", asked.kept, effect)
        for record in records:
            if record.waited_for:
                seconds = times.queue or 0.0
                effect = f"The request waited in the queue, {seconds:.3f} s until its first choice started."
                found.setdefault(record.waited_for, Limit(record.waited_for, None, effect))
        for choice in choices:
            limit = self._end(choice)
            if limit is not None:
                found.setdefault(limit.name, limit)
        return list(found.values())

    def _end(self, choice: CompletionState) -> Limit | None:
        """Return the limit that ended a choice."""
        length = self._asked.length
        if choice.finish_reason == "timeout":
            effect = f"The time was up {self._phase(choice.index)}."
            return Limit("timeout", round(self._asked.timeout_s, 3), effect)
        if choice.finish_reason != "length":
            return None
        if len(choice.token_ids) < length.num_tokens:
            return Limit("kv_cache", len(choice.token_ids), str(choice.stop_reason or "The KV cache was full."))
        return Limit(length.name, length.num_tokens, f"The answer ended after {length.num_tokens} tokens.")

    def _phase(self, choice: int) -> str:
        record = self._records.get(choice)
        if record is None or not record.started:
            return "before the request started"
        return "while tokens were generated" if record.first_token else "while the prompt was computed"


def _joined(earlier: SequenceRecord, later: SequenceRecord) -> SequenceRecord:
    """Return the record of a sequence that two engines computed one after the other."""
    sums = {name: getattr(earlier, name) + getattr(later, name) for name in SUMMED}
    audits = dict(Counter(earlier.audits) + Counter(later.audits))
    return msgspec.structs.replace(earlier, ended=later.ended, drafts_off=later.drafts_off, audits=audits, **sums)


def _audit(records: Sequence[SequenceRecord]) -> AuditUse | None:
    audits: Counter[str] = Counter()
    for record in records:
        audits.update(record.audits)
    rows = audits.pop("clean", 0)
    return AuditUse(rows, dict(audits)) if rows or audits else None


def _earliest(times: Iterable[float]) -> float:
    """Return the earliest of the times that are set; 0.0: none is."""
    return min(filter(None, times), default=0.0)


def _between(start: float, stop: float) -> float | None:
    """Return the seconds between two times; None if either is not set."""
    if not start or not stop:
        return None
    return max(stop - start, 0.0)
