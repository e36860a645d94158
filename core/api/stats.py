"""The state of an engine after a step, as clients see it.

Owns: `SchedulerStats` and `HaltHolder`, which `core.api.messages` sends. Never does: count. Called by: the scheduler and
observers (write them), clients and metrics (read them).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class HaltHolder(msgspec.Struct, array_like=True, frozen=True):
    """One reason why the engine computes nothing, as shown to every client: without the number of the client that caused it.

    reason:   `pause` and `sleep` are the operator's, `wait` is a call that waits for requests to end, `memory` is a sleep that
              failed halfway.
    since:    seconds since the epoch; 0.0: unknown.
    """

    reason: Literal["pause", "sleep", "wait", "memory"]
    since: float = 0.0


class SchedulerStats(msgspec.Struct, array_like=True, omit_defaults=True):
    """State of the engine after a step; counters are totals since start.

    num_running, num_waiting: requests. num_deferred: waiting requests that wait for something other than room: for keys and
    values that are being loaded, or for their grammar. kv_cache_usage: fraction of blocks in use, in [0, 1].
    prefix_queries, prefix_hits: tokens looked up in the prefix cache, and tokens found there. num_preemptions: preempted
    requests.
    spec_num_drafts, spec_num_draft_tokens, spec_num_accepted_tokens: speculative decoding.
    num_timeouts: requests ended by their deadline. num_failed_steps: steps that raised. num_violations: broken invariants met.
    audits: rows of steps that were computed again: `clean` ones, and mismatches by kind.
    kv_handoffs: leases, claims and their pages, by what became of them. kv_leases: leases that have not ended.
    tier_hits: tokens among `prefix_hits` that came from host memory or disk. tier_saved: blocks saved there.
    num_stalls: tokens whose distance from the previous token exceeded `--max-stall-ms`; 0 without that argument.
    kv_residency: see `core_kv_connectors.kv_residency`; empty when it is not measured.
    spec_accepted_by_place: accepted drafts by their position after the newest token; empty without speculation.
    spec_draft_seconds: seconds spent on proposing drafts.
    spec_steps_on: steps with a draft budget, by the largest budget of a sequence. spec_steps_off: steps without one, by cause.
    spec_off: why the proposer was switched off, as a sentence; empty while it is on.
    step_sizes: steps by their number of tokens, see `core_observers.step_sizes`.
    work: what the steps computed, by `core_observers.work`.
    weight_version: version of the weights; empty for the checkpoint that the engine was started with.
    sleep_level: 0 while the engine is awake. is_paused: whether requests wait because a client paused the engine.
    utility: name of a long call that the engine is about to begin; it is silent until that call ends.
    utility_since: when that call began, in seconds since the epoch.
    phase: current row of the lifecycle table, see docs/failures.md. holders: why nothing is computed, or will be once the
    running requests have ended.
    adapters_number: number of changes of the names of adapters so far, so that clients know when to read them again.
    expert_balance: mean load of ranks over the highest one; 0.0: unknown. expert_moves: experts that ranks got so far.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    spec_num_drafts: int = 0
    spec_num_draft_tokens: int = 0
    spec_num_accepted_tokens: int = 0
    num_timeouts: int = 0
    num_failed_steps: int = 0
    num_violations: int = 0
    tier_hits: int = 0
    tier_saved: int = 0
    kv_residency: list[list[float]] = []
    num_stalls: int = 0
    spec_accepted_by_place: list[int] = []
    spec_draft_seconds: float = 0.0
    spec_steps_on: dict[int, int] = {}
    spec_steps_off: dict[str, int] = {}
    spec_off: str = ""
    num_deferred: int = 0
    step_sizes: list[int] = []
    weight_version: str = ""
    sleep_level: int = 0
    is_paused: bool = False
    utility: str = ""
    utility_since: float = 0.0
    phase: str = "running"
    holders: tuple[HaltHolder, ...] = ()
    adapters_number: int = 0
    expert_balance: float = 0.0
    expert_moves: int = 0
    audits: dict[str, int] = {}
    work: dict[str, int] = {}
    kv_handoffs: dict[str, int] = {}
    kv_leases: int = 0

    @property
    def num_for_room(self) -> int:
        """Number of requests that wait only for room in the batch."""
        return self.num_waiting - self.num_deferred

    @property
    def tier_queries(self) -> int:
        """Number of prompt tokens not cached on the device, for which host memory or disk was searched."""
        return self.prefix_queries - self.prefix_hits + self.tier_hits
