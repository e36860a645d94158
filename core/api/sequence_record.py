"""The record that an engine keeps of one sequence, for requests that ask for an explanation of their answer.

Owns: `SequenceRecord` (sent to the client with each output), the causes that it names, and how much of it may be revealed.
Never does: measure, or speak to users (`core_frontend.api.explanation` does). Called by: the scheduler and the KV cache
(they fill records), messages (carry them).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

MISS_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "caching_off": "Prefix caching is switched off.",
        "prompt_logprobs": "Log-probabilities of the prompt were asked for, which need all of it computed.",
        "last_block": "Everything that can be cached was: what is left is no whole block, or the prompt's last token.",
        "collision": "Other tokens with the same hash are cached. They are not taken for these.",
        "evicted": "The same tenant had these tokens computed before; since then their blocks were evicted or reset.",
        "over_share": "Evicted, because the tenant had more blocks cached than its share (--kv-share-per-key).",
        "not_saved": "The tokens are known, but no connector has saved their page: its disk failed, or a rule left it out.",
        "page_damaged": "The page of these tokens was damaged, so it was not used.",
        "page_late": "A page of these tokens was there, but had not been read after ten seconds, or one without any answer.",
        "state_not_kept": "The tokens are known, but of the layers with a state none was kept at this place.",
        "other_adapter": "The same tenant had the same tokens computed with another adapter, or with none.",
        "other_tenant": "Another tenant had the same tokens computed, and tenants do not share.",
        "history_changed": "An earlier request of the same tenant has the same beginning and went on with other tokens.",
        "first_seen": "No earlier request of the same tenant came this far with these tokens.",
    }
)
"""Causes why a token of a prompt did not come from the prefix cache. On the wire a cause may be any text, so that a new cause
does not raise the protocol's version."""

NO_DRAFTS_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "cost": "By the measured times of steps and the drafts that were right, the batch is quicker without drafts.",
        "measure": "Now and then a step has no drafts, so that it stays known how long that takes.",
        "batch_size": "Too many requests ran or waited for drafts, by speculative_config.",
        "max_model_len": "The sequence is longer than those that the draft model sees.",
        "failed": "The proposer failed and is not asked any more.",
    }
)
"""Causes why a step, or a sequence, has no drafts although speculation is on."""

Scope = Literal["off", "own", "all"]
"""The facts about earlier requests that explained answers may reveal: `off`: nothing is explained; `own`: facts about requests
of the same tenant; `all`: also that another tenant had the same tokens."""


class CacheMiss(msgspec.Struct, array_like=True, frozen=True):
    """The first prompt token that did not come from the prefix cache.

    index:      index of the token in the prompt.
    cause:      the reason, a name in `MISS_CAUSES`.
    differs_at: index of the first token that differs from the newest earlier request of the same tenant with the same
                beginning; None except with `history_changed`.
    """

    index: int
    cause: str
    differs_at: int | None = None


class SequenceRecord(msgspec.Struct, array_like=True, omit_defaults=True):
    """Facts about the computation of one sequence, kept when its request asks. Times are `time.monotonic()`; 0.0: not yet.

    entered:               when the sequence arrived.
    started:               when it first got blocks.
    first_token:           when it got its first token.
    ended:                 when it ended.
    block_size:            tokens of a block.
    miss:                  first prompt token that was not cached; None until the sequence has started.
    num_memory_tokens:     cached prompt tokens that came from host memory.
    num_disk_tokens:       cached prompt tokens that came from disk.
    num_preemptions:       number of times that it was preempted.
    num_recomputed_tokens: tokens computed again after a preemption or a failed step.
    num_drafts:            draft tokens that were verified.
    num_accepted:          draft tokens that were accepted.
    num_steps:             steps that computed something for the sequence.
    waited_for:            argument whose limit last kept it waiting; empty when it started in the next step.
    drafts_off:            why it had no drafts in its last step, as a sentence; empty when it may have had some.
    audits:                audited rows: `clean` ones, and its steps that an audit discarded, by what differed.
    """

    entered: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    block_size: int = 0
    miss: CacheMiss | None = None
    num_memory_tokens: int = 0
    num_disk_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    waited_for: str = ""
    drafts_off: str = ""
    audits: dict[str, int] = {}
