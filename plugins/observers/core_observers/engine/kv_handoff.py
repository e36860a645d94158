"""Handoffs of KV between engines, as requests ask for them.

Owns: `KVHandoffs`, an observer of the engine and a gate: which requests lease their prompt's blocks to another engine, which
wait for pages of one, and when these pages are no longer needed. Never does: speak to a peer (the KV connector does), or read
what a client wrote (the server does). Called by: the engine core, between steps; servers, through its utilities.

A server announces what a request asks for before it sends the request itself, under the same id. A request of which nothing was
announced, as after a death of the engine, is computed here.

A running request changes engines in the same way: `hand_over` ends it here and leases what it has computed, and the other
engine claims that for the request with its tokens.

With `kv_load_failure_policy` fail, a request whose pages do not all come ends with an error before anything of it is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Self

import msgspec

from core.api.messages import EngineRequest, Resume
from core.api.stats import SchedulerStats
from core.engine.observer import Engine, EngineStart
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core.scheduler.step import Step
from core_kv_connectors.handoff.claim import Claim, Source
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.roles import roles_of
from core_observers.engine.handed_blocks import cached_blocks, is_cached, keyed_blocks, sequence_of
from core_observers.engine.kv_failures import NO_CONNECTOR, WHY_NO_CLAIM, LoadFailures
from core_observers.engine.kv_moves import Arrivals
from core_supervision.waiting_gate import WaitingGate

MOST_WATCHED: Final = 4096
"""Limit on requests whose blocks are to be leased; a further one is answered without a ticket."""
NOW_BYTES: Final = 64 << 20
"""Bytes of leased blocks that an engine without work copies before it answers, in some 30 ms."""


class KVHandoffs(WaitingGate):
    """The handoffs of one engine. failures: of its requests."""

    order = 33  # after the gate of media, whose spans are part of keys; before that of adapters, which must be the last

    def __init__(self, failures: LoadFailures) -> None:
        super().__init__()
        self._failures = failures
        self._watched: dict[str, KVSequence | None] = {}
        self._to_start: dict[str, set[int]] = {}
        self._arrivals = Arrivals()
        self._looked_at: tuple[object, Handoff | None] = ((), None)

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the handoffs of an engine that has a role in them."""
        return cls(LoadFailures(start.config)) if roles_of(start.config) else None

    def attach(self, engine: Engine) -> None:
        """Keep the engine, and have the connector know how its pages are divided among ranks."""
        self._engine = engine
        connector = self._connector
        shape = getattr(engine.executor, "page_shape", None)
        if connector is not None and shape is not None:
            connector.arrange(shape, engine.executor.numerics)

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the calls of servers."""

        def claim_kv(request_id: str, source: dict[str, Any], tenant: str, num_choices: int = 0) -> str:
            return self.claim(f"{client}:{request_id}", msgspec.convert(source, Source), tenant, num_choices)

        return {
            "watch_kv": lambda request_id: self.watch(f"{client}:{request_id}"),
            "lease_kv": lambda request_id: self.lease(f"{client}:{request_id}"),
            "claim_kv": claim_kv,
            "end_kv": lambda request_id: self.end(f"{client}:{request_id}"),
            "hand_over_kv": lambda request_id: self.hand_over(f"{client}:{request_id}"),
            "drop_kv": self.drop_lease,
            "moved_kv": lambda request_id: self._arrivals.take(f"{client}:{request_id}"),
            "kv_handoffs": self.counts,
        }

    # --- producer ---

    def watch(self, name: str) -> bool:
        """Note that a request is to come whose blocks are to be leased. False: too many are noted."""
        if len(self._watched) >= MOST_WATCHED:
            return False
        self._watched[name] = None
        return True

    def lease(self, name: str) -> dict[str, Any] | None:
        """Lease the cached blocks of a request's prompt; returns ticket, host, port and engine_id, or None without a lease."""
        sequence = self._watched.pop(name, None)
        return None if sequence is None else self._leased([sequence])[0]

    def hand_over(self, name: str) -> dict[str, Any] | None:
        """End a live request without an output, and lease what its choices have computed, as `lease` does.

        Its client has been sent all of its tokens before it gets this answer. Returns also the bytes of the leased pages
        (`num_bytes`); None without a lease: nothing is cached, there is no room, or the request has not been scheduled.
        """
        engine = self._engine
        live = [sequence for sequence in engine.scheduler.sequences if sequence.key[0] == name]
        pasts = [Resume(sequence.output_token_ids, max(sequence.num_cached_tokens, 0)) for sequence in live]
        requests = [sequence.request for sequence in live]
        # First, because full blocks of an answer are cached, and its last state is kept, when a sequence leaves.
        engine.sequences.abort([name])
        sequences = []
        for request, past in zip(requests, pasts, strict=True):
            sequence = sequence_of(msgspec.structs.replace(request, resume=past))
            if not sequence.needs_whole_prompt:
                sequences.append(sequence)
        lease, num_bytes = self._leased(sequences)
        return None if lease is None else lease | {"num_bytes": num_bytes}

    def drop_lease(self, ticket: str) -> None:
        """End the lease of a request that goes nowhere."""
        connector = self._connector
        if connector is not None:
            connector.drop_lease(ticket)

    def _leased(self, sequences: Sequence[KVSequence]) -> tuple[dict[str, Any] | None, int]:
        """Lease the cached blocks of sequences of one tenant; returns what `lease` does, and the bytes of the pages."""
        connector = self._connector
        if not sequences or connector is None or connector.roles.listen is None:
            return None, 0
        kv = self._engine.scheduler.kv
        blocks, last, num_blocks = cached_blocks(kv, self._engine, sequences)
        ticket = connector.lease(blocks, last, num_blocks, sequences[0].tenant) if blocks else None
        if ticket is None:
            return None, 0
        self._copy_now(kv, connector)
        host, port = connector.roles.listen
        lease = {"ticket": ticket, "host": host, "port": port, "engine_id": connector.roles.engine_id}
        return lease, len(blocks) * connector.page_bytes

    # --- consumer ---

    def claim(self, name: str, source: Source, tenant: str, num_choices: int = 0) -> str:
        """Begin to fetch the pages of a request that is to come; returns why not, empty when it has begun.

        num_choices: of a request that changes engines, whose choices have blocks of their own; 0: any number of choices has
        the blocks of one prompt.
        """
        connector = self._connector
        reason = NO_CONNECTOR if connector is None else connector.claim(name, source, tenant)
        if num_choices:
            self._arrivals.expect(name, num_choices, reason)
        if reason:
            self._fail(name, str(source), WHY_NO_CLAIM[reason])
        return reason

    def end(self, name: str) -> None:
        """Forget a request; its lease is released. Unknown names are ignored."""
        self._watched.pop(name, None)
        self._failures.forget(name)
        self._end_claim(name)

    def _end_claim(self, name: str) -> None:
        """Release the lease of a request, whose pages are no longer needed."""
        self._to_start.pop(name, None)
        connector = self._connector
        if connector is not None:
            self._arrivals.note(name, connector.claim_of(name))
            connector.end_claim(name)

    def report(self, stats: SchedulerStats) -> None:
        """Add the counts to the statistics."""
        super().report(stats)
        connector = self._connector
        if connector is not None:
            stats.kv_handoffs = connector.totals()
            stats.kv_leases = 0 if connector.leases is None else len(connector.leases)

    def counts(self) -> dict[str, int]:
        """Return the counts of `Handoff`, and the requests that wait here."""
        connector = self._connector
        told = {} if connector is None else connector.report_counts()
        return {**told, "waiting": len(self.held), "watched": len(self._watched)}

    # --- the gate and the observer ---

    def hold(self, request: EngineRequest) -> bool:
        """Keep a request until its pages are here, or are known not to come."""
        name = request.request_id
        connector = self._connector
        if name in self._watched and self._watched[name] is None:
            self._watched[name] = sequence_of(request)
        claim = None if connector is None else connector.claim_of(name)
        if claim is None and self._failures.sentence(name) is None:
            return False
        if sequence_of(request).needs_whole_prompt:  # every token is computed, so that no page is needed
            self._failures.forget(name)
            self._end_claim(name)
            return False
        if self._refused(request):
            return True
        if claim is None:
            return False
        self.held.append(request)
        self._make_known(name, claim)
        return True

    def _make_known(self, name: str, claim: Claim) -> None:
        """Have a claim learn which pages a request may need, once all of its choices that have pages of their own are here."""
        if claim.is_known:
            return
        requests = [request for request in self.held if request.request_id == name]
        if requests and self._arrivals.are_all(name, len(requests)):
            claim.know(partial(keyed_blocks, self._engine.scheduler.kv, [sequence_of(one) for one in requests]))

    def before_step(self) -> None:
        """Schedule the requests whose pages are here, and say which pages are still needed."""
        if not self.held:
            return
        now = time.monotonic()
        held, self.held = self.held, []
        for request in held:
            if self._is_awaited(request, now):
                self.held.append(request)
            elif not self._refused(request):
                self._engine.sequences.add([request], after=self)

    def submitted(self, step: Step) -> None:
        """Drop the pages of requests that have begun: the plan has what their blocks get."""
        if not self._to_start:
            return
        for sequence in step.sequences():
            name, choice = sequence.request.key
            waiting = self._to_start.get(name)
            if waiting is not None:
                waiting.discard(choice)
                if not waiting:
                    self.end(name)

    def awaited(self) -> Collection[Future[Any]]:
        """Return what the claims of waiting requests wait for."""
        connector = self._connector
        claims = [] if connector is None else [connector.claim_of(request.request_id) for request in self.held]
        return [claim.done if claim.offered.done() else claim.offered for claim in claims if claim is not None]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests, and release their leases."""
        names = list(request_ids)
        super().abort(names)
        for name in names:
            self.end(name)

    def drop(self, requests: Collection[EngineRequest]) -> None:
        """Keep these sequences no longer; a claim ends with the last choice of its request."""
        super().drop(requests)
        connector = self._connector
        left = {request.request_id for request in self.held}
        for request in requests:
            name = request.request_id
            self._arrivals.leave(name)
            claim = None if connector is None else connector.claim_of(name)
            if name not in left and name not in self._to_start:
                self.end(name)
            elif claim is not None:
                self._make_known(name, claim)

    def client_gone(self, client: int) -> None:
        """Forget the requests of a client that is gone."""
        connector = self._connector
        claimed = [] if connector is None else connector.claimed()
        for name in {*self._watched, *self._failures.names(), *claimed}:
            if name.startswith(f"{client}:"):
                self.end(name)
        self._arrivals.forget(f"{client}:")

    @property
    def _connector(self) -> Handoff | None:
        """The connector; None once it has failed."""
        connectors = self._engine.kv_services.connectors
        if connectors is not self._looked_at[0]:  # each step asks, and one that fails is rare
            self._looked_at = connectors, next((one for one in connectors if isinstance(one, Handoff)), None)
        return self._looked_at[1]

    def _is_awaited(self, request: EngineRequest, now: float) -> bool:
        """Whether a request has to wait on. Lets look-ups find its pages when it has not."""
        name = request.request_id
        connector = self._connector
        claim = None if connector is None else connector.claim_of(name)
        if connector is None:
            self._fail(name, "a peer", WHY_NO_CLAIM[NO_CONNECTOR])
            return False
        if claim is None:
            return False
        if request.deadline and request.deadline <= now:  # the scheduler ends it
            self._end_claim(name)
            return False
        # A peer may send a byte at a time, for ever.
        if not claim.done.done() and not claim.is_late:
            if claim.offered.done():
                kv = self._engine.scheduler.kv
                claim.want([block for block in claim.offered.result() if not is_cached(kv, *block)])
            return True
        failure = claim.failure
        if failure:
            self._fail(name, str(claim.source), failure)
        if failure and (self._failures.is_policy or not claim.done.done()):
            self._end_claim(name)
        else:
            connector.collect(name)
            self._to_start.setdefault(name, set()).add(request.choice)
        return False

    def _fail(self, name: str, peer: str, why: str) -> None:
        """Note that the pages of a request do not all come from a peer."""
        connector = self._connector
        if self._failures.add(name, peer, why) and connector is not None:
            connector.counts["requests_failed"] += 1

    def _refused(self, request: EngineRequest) -> bool:
        """End a request whose pages do not all come, if that is the policy; False: it may go on."""
        sentence = self._failures.sentence(request.request_id)
        if sentence is None:
            return False
        self.refuse(request, sentence)
        return True

    def _copy_now(self, kv: KVManager, connector: Handoff) -> None:
        """Copy leased blocks at once where nothing else is to be computed; otherwise they come with the next steps."""
        engine = self._engine
        if engine.sequences.live or engine.scheduler.in_flight:
            return
        for _ in range(max(1, NOW_BYTES // connector.copy_bytes)):
            if not connector.copy_some(kv) or not kv.copy_now(engine.queue.copy):
                return
