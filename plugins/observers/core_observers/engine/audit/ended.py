"""Answers that have ended, computed again without the prefix cache while the engine has room for it.

Owns: `EndedAnswers`: the answers that wait for that, the request that computes one of them again, and the comparison of tokens.
Never does: compare what is cached (`cached` does), choose an answer, or decide what follows from a difference. Called by: the
audit.

The request belongs to the batch class, so it gets what all others leave of a step. It has the answer's prompt, parameters and
seed, and a salt that no prefix is cached under: damage of cached keys and values reaches the answer, and not its copy. One
answer is computed again at a time, and none whose engine has got other weights or adapters meanwhile.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable

import msgspec

from core.api.messages import NO_HANDLE, EngineRequest
from core.api.step_plan import SequenceKey
from core.engine.observer import Engine
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.step import Step
from core_observers.engine.audit.cached import UsedBytes, compare, take_pairs
from core_observers.engine.audit.dump import Place
from core_observers.engine.audit.executor import AuditedExecutor
from core_observers.engine.audit.row import Difference

REQUEST_ID = "core-engine-audit"
MOST_WAITING = 4
"""Chosen answers that wait; further ones are not chosen, so that their tokens take no memory."""
UNCHANGING = frozenset((
    "ping", "check_integrity", "check_params", "start_profile", "stop_profile", "written_profile", "lifecycle",
    "keep_pause", "let_go", "resume", "step_costs", "watch_energy", "take_energy", "watch_kv", "lease_kv", "claim_kv",
    "end_kv", "kv_handoffs", "hand_over_kv", "drop_kv", "moved_kv", "pin_prefix", "unpin_prefix", "prefix_places",
    "num_pins",
))  # fmt: skip
"""Utilities after which an answer is still what this engine computes. All others drop what is being computed again."""


class EndedAnswers:
    """The answers of one engine that are computed again. on_difference: called with place and difference."""

    def __init__(
        self,
        engine: Engine,
        executor: AuditedExecutor,
        on_difference: Callable[[Place, Difference], None],
        on_clean: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._on_difference = on_difference
        self._on_clean = on_clean
        self._waiting: deque[SequenceState] = deque()
        self._answer: SequenceState | None = None
        self._again: EngineRequest | None = None
        self._older: set[SequenceKey] = set()

    def finished(self, step: Step, is_chosen: Callable[[], bool]) -> None:
        """Take the answers that ended with a step, and go on with what is computed again."""
        for row, sequence in enumerate(step.sequences()):
            is_again = sequence.request is self._again
            if is_again:
                self._executor.charge(int(step.plan.query_lens[row]) / step.plan.total_num_tokens)
            if sequence.status is not SequenceStatus.FINISHED:
                continue
            if is_again:
                self._compare(sequence)
            elif len(self._waiting) < MOST_WAITING and self._can_repeat(sequence) and is_chosen():
                self._waiting.append(sequence)
        if self._waiting:
            self._begin_next()

    def drop(self) -> None:
        """Forget all answers, and those that live sequences will have: the engine is about to change."""
        self._waiting.clear()
        self._older = {sequence.key for sequence in self._engine.scheduler.sequences}
        if self._again is not None:
            self._engine.sequences.abort([REQUEST_ID])
            self._answer = self._again = None

    def _can_repeat(self, sequence: SequenceState) -> bool:
        request = sequence.request
        asks_more = request.pooling is not None or request.params.prompt_logprobs is not None or request.media
        # Tokens of an earlier engine may be those of other weights.
        is_old = request.resume is not None or request.key in self._older
        return not (asks_more or is_old or request.request_id == REQUEST_ID) and sequence.num_output_tokens > 0

    def _begin_next(self) -> None:
        live = {sequence.key for sequence in self._engine.scheduler.sequences}
        if self._again is not None and self._again.key in live:
            return
        self._answer = self._waiting.popleft()
        self._again = msgspec.structs.replace(
            self._answer.request,
            request_id=REQUEST_ID,
            handle=NO_HANDLE,
            cache_salt=secrets.token_hex(16),
            num_public_tokens=0,
            user="",
            deadline=0.0,
            priority=0,
            explain=False,
            flex=True,
        )
        # Past the gates: the grammar is compiled, and an engine that is halted goes on with this one later.
        self._engine.sequences.schedule(self._again)

    def _compare(self, again: SequenceState) -> None:
        answer = self._answer
        assert answer is not None, "it is computed again"
        self._answer = self._again = None
        num_prompt = answer.num_prompt_tokens
        tokens = list(zip(answer.token_ids[num_prompt:], again.token_ids[num_prompt:], strict=False))
        found: Difference | None = None
        # The shorter one ended with an error or a full cache: that is no difference in what both have.
        wrong = next((place for place, (served, own) in enumerate(tokens) if served != own), None)
        if wrong is not None:
            found, first = Difference("answer", *tokens[wrong]), num_prompt + wrong
        pairs = take_pairs(self._engine.scheduler.kv, answer, again)
        if found is None:
            used: UsedBytes | None = getattr(self._executor, "used_bytes", None)
            found, first = compare(pairs, self._executor.read, used), 0
        if found is None:
            self._on_clean()
            return
        num_tokens = len(answer.token_ids) - first
        place = Place(answer.request.request_id, first, num_tokens, len(pairs), answer.token_ids)
        self._on_difference(place, found)
