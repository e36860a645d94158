"""Encoding of a step's result as one message from a worker.

Owns: which fields are sent, and in which columns. Never does: send, or know processes. Called by: executors whose workers are
elsewhere.

Slots that are the plan's are left out: both ends know the plan that a result answers. So are saved pages, which lie where the
plan said.
"""

from __future__ import annotations

from itertools import chain

import msgspec
import numpy as np

from core.api.messages import TokenLogprobs
from core.api.step_plan import Slot, StepPlan, StepResult
from core_kv_connectors.shared_pages import PlacedTransfers
from core_runtime.executor.steps.columns import ColumnReader, ColumnWriter, Header, WireError, check_equal_lens, split


class ResultFacts(msgspec.Struct, array_like=True, omit_defaults=True):
    """The part of a result outside of its columns.

    same_slots: the slots are the plan's, and left out.
    has_pages:  the plan's KV transfers were made, and its pages are in their places.
    errors, draft_seconds, proposer_off: as in `StepResult`.
    """

    same_slots: bool = False
    has_pages: bool = False
    errors: dict[Slot, str] = {}
    draft_seconds: float = 0.0
    proposer_off: str = ""


_RESULTS: msgspec.msgpack.Decoder[Header[ResultFacts]] = msgspec.msgpack.Decoder(Header[ResultFacts])


def encode_result(result: StepResult, plan: StepPlan) -> bytes:
    """Encode one result. plan: the plan that it answers."""
    columns = ColumnWriter()
    same_slots = result.same_slots or np.array_equal(result.slots, plan.slots)
    # A flag of its own: an empty column could mean an empty list or None.
    has_pages = result.pages is not None
    facts = ResultFacts(same_slots, has_pages, result.errors, result.draft_seconds, result.proposer_off)
    if not same_slots:
        columns.put("slots", result.slots)
    columns.put("token_ids", result.token_ids)
    columns.put_keys("more", result.more_token_ids)
    columns.put_lists("more", result.more_token_ids.values())
    columns.put_keys("verified", result.num_verified)
    columns.put("verified", list(result.num_verified.values()))
    columns.put_keys("proposed", result.num_proposed)
    columns.put("proposed", list(result.num_proposed.values()))
    _put_logprobs(columns, "logprobs", result.logprobs)
    _put_logprobs(columns, "prompt", result.prompt_logprobs)
    columns.put_keys("pooled", result.pooled)
    columns.put_bytes("pooled", list(result.pooled.values()))
    columns.put_keys("facts", result.facts)
    columns.put_bytes("facts", list(result.facts.values()))
    return columns.message(facts)


def decode_result(message: bytes, plan: StepPlan) -> StepResult:
    """Decode one result. plan: the plan that it answers, as it was sent. Raises WireError for a damaged message."""
    columns = ColumnReader(message, _RESULTS)
    facts = columns.facts
    slots = plan.slots if facts.same_slots else columns.get("slots")
    token_ids = columns.get("token_ids")
    if len(slots) != len(token_ids):
        raise WireError(f"A result has {len(token_ids)} tokens for {len(slots)} sequences.")
    result = StepResult(slots, token_ids)
    more_token_ids = columns.lists("more")
    verified = columns.items("verified")
    proposed = columns.items("proposed")
    result.same_slots = facts.same_slots
    result.errors = facts.errors
    result.draft_seconds = facts.draft_seconds
    result.proposer_off = facts.proposer_off
    result.more_token_ids = columns.keyed("more", more_token_ids)
    result.num_verified = columns.keyed("verified", verified)
    result.num_proposed = columns.keyed("proposed", proposed)
    result.logprobs = _get_logprobs(columns, "logprobs")
    result.prompt_logprobs = _get_logprobs(columns, "prompt")
    pooled = columns.byte_arrays("pooled")
    result.pooled = columns.keyed("pooled", [numbers.tobytes() for numbers in pooled])
    told = columns.byte_arrays("facts")
    result.facts = columns.keyed("facts", [fact.tobytes() for fact in told])
    if facts.has_pages:
        if not isinstance(plan.transfers, PlacedTransfers):
            raise WireError("A result has pages that its plan did not ask for.")
        result.pages = plan.transfers.into
    return result


def _put_logprobs(columns: ColumnWriter, name: str, logprobs: dict[Slot, list[TokenLogprobs]]) -> None:
    """Add logprobs of some slots: the number of entries of each, then all entries, concatenated."""
    if not logprobs:
        return
    token_ids: list[list[int]] = []
    values: list[float] = []
    ranks: list[int] = []
    for entry in chain.from_iterable(logprobs.values()):
        if not len(entry.token_ids) == len(entry.logprobs) == len(entry.ranks):
            raise WireError("Logprobs need as many numbers and ranks as token ids.")
        token_ids.append(entry.token_ids)
        values += entry.logprobs
        ranks += entry.ranks
    counts = [len(entries) for entries in logprobs.values()]
    columns.put_keys(name, logprobs)
    columns.put(f"{name}.counts", counts)
    columns.put_lists(f"{name}.token_ids", token_ids)
    columns.put(f"{name}.values", values, "f8")
    columns.put(f"{name}.ranks", ranks)


def _get_logprobs(columns: ColumnReader[ResultFacts], name: str) -> dict[Slot, list[TokenLogprobs]]:
    """Return the logprobs that `_put_logprobs` wrote."""
    counts = columns.items(f"{name}.counts")
    if not counts:
        return {}
    token_ids = columns.lists(f"{name}.token_ids")
    lens = [len(ids) for ids in token_ids]
    values = split(columns.items(f"{name}.values"), lens)
    ranks = split(columns.items(f"{name}.ranks"), lens)
    check_equal_lens(name, token_ids, values, ranks)
    rows = zip(token_ids, values, ranks, strict=True)
    entries = [TokenLogprobs(*row) for row in rows]
    by_slot = split(entries, counts)
    return columns.keyed(name, by_slot)
