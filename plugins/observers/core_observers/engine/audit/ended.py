"""Answers that have ended, computed again without the prefix cache while the engine has room for it.

Owns: `EndedAnswers`: the answers that wait for that, the request that computes one of them again, and the comparison of tokens
and of the keys and values that are cached. Never does: choose an answer, or decide what follows from a difference. Called by:
the audit.

The request belongs to the batch class, so it gets what all others leave of a step. It has the answer's prompt, parameters and
seed, and a salt that no prefix is cached under: damage of cached keys and values reaches the answer, and not its copy. One
answer is computed again at a time, and none whose engine has got other weights or adapters meanwhile.
"""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from core.api.messages import NO_HANDLE, EngineRequest
from core.api.step_plan import SequenceKey
from core.engine.observer import Engine
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.step import Step
from core_observers.engine.audit.dump import Place
from core_observers.engine.audit.executor import AuditedExecutor
from core_observers.engine.audit.row import Difference

REQUEST_ID = "core-engine-audit"
MOST_WAITING = 4
"""Chosen answers that wait; further ones are not chosen, so that their tokens take no memory."""
MOST_COMPARED = 128
"""Blocks of each side whose bytes are compared, drawn at random: 2,048 tokens, or 50 MB a side of a small model."""
AT_ONCE = 16
UNCHANGING = frozenset((
    "ping", "check_integrity", "check_params", "start_profile", "stop_profile", "written_profile", "lifecycle",
    "keep_pause", "let_go", "resume", "step_costs", "watch_energy", "take_energy", "watch_kv", "lease_kv", "claim_kv",
    "end_kv", "kv_handoffs", "pin_prefix", "unpin_prefix", "prefix_places", "num_pins",
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
        self._older = {request.key for request in self._engine.scheduler.requests}
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
        live = {request.key for request in self._engine.scheduler.requests}
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
        pairs = list(zip(answer.token_ids[num_prompt:], again.token_ids[num_prompt:], strict=False))
        found: Difference | None = None
        # The shorter one ended with an error or a full cache: that is no difference in what both have.
        wrong = next((place for place, (served, own) in enumerate(pairs) if served != own), None)
        if wrong is not None:
            found, first = Difference("answer", *pairs[wrong]), num_prompt + wrong
        blocks = self._cached_for_both(answer, again)
        if found is None:
            found, first = self._compare_blocks(blocks), 0
        if found is None:
            self._on_clean()
            return
        place = Place(answer.request.request_id, first, len(answer.token_ids) - first, len(blocks), answer.token_ids)
        self._on_difference(place, found)

    def _cached_for_both(self, answer: SequenceState, again: SequenceState) -> list[tuple[int, int]]:
        """Return the blocks that are cached for the same tokens of both; those of the copy are cached no longer."""
        kv = self._engine.scheduler.kv
        served, own = kv.lookup_now(answer), kv.lookup_now(again)
        pairs: list[tuple[int, int]] = []
        for left, right in zip(served.block_ids, own.block_ids, strict=True):
            pairs += [pair for pair in zip(left, right, strict=False) if all(pair) and pair[0] != pair[1]]
        # Copies of states are not compared: the next step may make them. Keys of later layers depend on the states.
        # A state is one entry of the cache, under its first block.
        kv.forget(filter(None, (block_id for ids in (*own.block_ids, own.state[:1]) for block_id in ids)))
        return random.sample(pairs, min(len(pairs), MOST_COMPARED))

    def _compare_blocks(self, pairs: Sequence[tuple[int, int]]) -> Difference | None:
        for start in range(0, len(pairs), AT_ONCE):
            part = pairs[start : start + AT_ONCE]
            pages = self._executor.read([served for served, _ in part] + [own for _, own in part])
            for served, own in zip(pages[: len(part)], pages[len(part) :], strict=True):
                if not np.array_equal(served, own):
                    return Difference("cached", served.tobytes(), own.tobytes())
        return None
