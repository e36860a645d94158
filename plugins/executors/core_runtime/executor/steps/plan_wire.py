"""Encoding of a step's plan as one message to a worker.

Owns: which fields are sent, and in which columns. Never does: send, or know processes. Called by: executors whose workers are
elsewhere.

KV pages are named by their places in shared memory (`SharedPages`): no plan has their bytes.

A plan with the same batch as the previous one says only that: the worker knows the slots, and how far each sequence has
got. So a plan of steady decode takes a few bytes, for any number of sequences, plus the new blocks.
"""

from __future__ import annotations

import msgspec
import numpy as np

from core.api.kv_transfer import KVTransfers
from core.api.messages import NO_HANDLE, EngineRequest
from core.api.step_plan import NO_ROWS, Int32Array, NewSequence, StateCopy, StepPlan
from core_kv_connectors.shared_pages import PagePart, PlacedTransfers, places_of
from core_runtime.executor.steps.columns import ColumnReader, ColumnWriter, Header, WireError, check_equal_lens


class PlanFacts(msgspec.Struct, array_like=True, omit_defaults=True):
    """The part of a plan outside of its columns.

    same_batch: as in `StepPlan`; slots and lengths are left out.
    goes_on:    every sequence continues where the previous plan left it; `num_computed` is left out.
    transfers:  number of the KV transfers in the message; None: there are none.
    requests:   requests of the new sequences, without their tokens.
    """

    total_num_tokens: int = 0
    same_batch: bool = False
    goes_on: bool = False
    transfers: int | None = None
    requests: list[EngineRequest] = []


_PLANS: msgspec.msgpack.Decoder[Header[PlanFacts]] = msgspec.msgpack.Decoder(Header[PlanFacts])


class PlanEncoder:
    """The scheduler's end. Plans are encoded in order, and every worker receives every message."""

    def __init__(self) -> None:
        self._expected: Int32Array = NO_ROWS

    def encode(self, plan: StepPlan) -> bytes:
        """Encode one plan. If it raises, the encoder's state has not changed."""
        columns = ColumnWriter()
        same_batch = plan.same_batch and len(self._expected) == len(plan.slots)
        goes_on = same_batch and np.array_equal(plan.num_computed, self._expected)
        facts = PlanFacts(plan.total_num_tokens, same_batch, goes_on)
        if not same_batch:
            columns.put("slots", plan.slots)
            columns.put("query_lens", plan.query_lens)
        if not goes_on:
            columns.put("num_computed", plan.num_computed)
        columns.put("removed", plan.removed)
        columns.put_keys("blocks", plan.new_block_ids)
        columns.put_tables("blocks", plan.new_block_ids.values())
        columns.put_keys("drafts", plan.num_drafts)
        columns.put("drafts", list(plan.num_drafts.values()))
        columns.put_keys("budget", plan.draft_budget)
        columns.put("budget", list(plan.draft_budget.values()))
        if plan.moved_states:
            columns.put_keys("moved", plan.moved_states)
            columns.put_tables("moved", plan.moved_states.values())
        if plan.copies:
            columns.put_tables("copies", plan.copies)
        if plan.new:
            facts.requests = [_without_tokens(new.request) for new in plan.new]
            _put_new(columns, plan.new)
        if plan.transfers is not None:
            facts.transfers = plan.transfers.number
            _put_transfers(columns, plan.transfers)
        # Encoded before the state changes, because encoding may raise.
        message = columns.message(facts)
        if len(plan.slots):
            self._expected = plan.num_computed + plan.query_lens
        return message


class PlanDecoder:
    """A worker's end. Messages are decoded in the order in which they were encoded.

    pages: the worker's part of each page; None: plans have no transfers.
    """

    def __init__(self, pages: PagePart | None = None) -> None:
        self._pages = pages
        self._slots = NO_ROWS
        self._expected = NO_ROWS

    def decode(self, message: bytes) -> StepPlan:
        """Decode one plan. Raises WireError when it continues a plan that never arrived."""
        columns = ColumnReader(message, _PLANS)
        facts = columns.facts
        if facts.same_batch:
            self._check_batch(facts.total_num_tokens)
            slots = self._slots
            # `same_batch` is set only for plans in which every sequence computes one token.
            query_lens = np.ones(len(slots), np.int32)
        else:
            slots = columns.get("slots")
            query_lens = columns.get("query_lens")
        # Both ends add the query lengths to the positions, so they agree without sending the result.
        num_computed = self._expected if facts.goes_on else columns.get("num_computed")
        if not len(slots) == len(query_lens) == len(num_computed):
            raise WireError(f"A plan has {len(slots)} slots, {len(query_lens)} and {len(num_computed)} lengths.")
        tables = columns.tables("blocks")
        drafts = columns.items("drafts")
        budgets = columns.items("budget")
        plan = StepPlan(slots, query_lens, num_computed)
        plan.total_num_tokens = facts.total_num_tokens
        plan.same_batch = facts.same_batch
        plan.removed = columns.items("removed")
        plan.new = _get_new(columns, facts.requests)
        plan.new_block_ids = columns.keyed("blocks", tables)
        plan.moved_states = columns.keyed("moved", columns.tables("moved"))
        copies = columns.tables("copies")
        plan.copies = [_state_copy(lists) for lists in copies]
        plan.num_drafts = columns.keyed("drafts", drafts)
        plan.draft_budget = columns.keyed("budget", budgets)
        if facts.transfers is not None:
            plan.transfers = _get_transfers(columns, facts.transfers, self._pages)
        if len(slots):
            self._slots = slots
            self._expected = num_computed + query_lens
        return plan

    def _check_batch(self, num_seqs: int) -> None:
        if len(self._slots) != num_seqs:
            raise WireError(
                f"A plan repeats the {num_seqs} sequences of the one before it, which had {len(self._slots)} here: "
                "a plan was lost on the way."
            )


def _without_tokens(request: EngineRequest) -> EngineRequest:
    """Return a request without its columns and without fields that a worker does not use, such as the user and the times."""
    return msgspec.structs.replace(
        request,
        prompt_token_ids=[],
        allowed_ids=b"",
        arrival_time=0.0,
        priority=0,
        cache_salt=None,
        tenant="",
        num_public_tokens=0,
        edges=[],
        media=[msgspec.structs.replace(item, features=b"", rows=b"") for item in request.media],
        user="",
        resume=None,
        deadline=0.0,
        explain=False,
        handle=NO_HANDLE,
    )


def _put_new(columns: ColumnWriter, sequences: list[NewSequence]) -> None:
    """Add the new sequences, one row each, without their requests."""
    slots = [new.slot for new in sequences]
    num_computed = [new.num_computed_tokens for new in sequences]
    prompts = [new.request.prompt_token_ids for new in sequences]
    outputs = [new.output_token_ids for new in sequences]
    tables = [new.block_ids for new in sequences]
    max_lengths = [new.max_length for new in sequences]
    allowed = [new.request.allowed_ids for new in sequences]
    columns.put("new.slots", slots)
    columns.put("new.num_computed", num_computed)
    columns.put("new.max_length", max_lengths)
    columns.put_lists("new.prompt", prompts)
    columns.put_lists("new.output", outputs)
    columns.put_tables("new.blocks", tables)
    columns.put_bytes("new.allowed", allowed)
    columns.put_bytes("new.media", [item.rows for new in sequences for item in new.request.media])


def _get_new(columns: ColumnReader[PlanFacts], requests: list[EngineRequest]) -> list[NewSequence]:
    """Return the sequences that `_put_new` wrote. requests: their requests, which get their tokens back."""
    if not requests:
        return []
    prompts = columns.lists("new.prompt")
    allowed = columns.byte_arrays("new.allowed")
    slots = columns.items("new.slots")
    outputs = columns.lists("new.output")
    num_computed = columns.items("new.num_computed")
    tables = columns.tables("new.blocks")
    max_lengths = columns.items("new.max_length")
    check_equal_lens("new", requests, prompts, allowed, slots, outputs, num_computed, tables, max_lengths)
    for request, token_ids, allowed_ids in zip(requests, prompts, allowed, strict=True):
        request.prompt_token_ids = token_ids
        request.allowed_ids = allowed_ids.tobytes()
    items = [item for request in requests for item in request.media]
    given = columns.byte_arrays("new.media")
    check_equal_lens("new.media", items, given)
    for item, numbers in zip(items, given, strict=True):
        item.rows = numbers.tobytes()
    rows = zip(slots, requests, outputs, num_computed, tables, max_lengths, strict=True)
    return [NewSequence(*row) for row in rows]


def _state_copy(lists: list[list[int]]) -> StateCopy:
    """Return a copy that was written as a table of two rows."""
    if len(lists) != 2:
        raise WireError(f"A copy of a state has {len(lists)} lists of blocks; expected where from and where to.")
    sources, targets = lists
    return StateCopy(sources, targets)


def _put_transfers(columns: ColumnWriter, transfers: KVTransfers) -> None:
    """Add the blocks to save and to load, each with the place of its page."""
    if not isinstance(transfers, PlacedTransfers):
        raise WireError("The pages of a plan have no places that its worker sees.")
    columns.put("saves", transfers.saves)
    columns.put("into", places_of(transfers.into))
    columns.put("loads", [block_id for block_id, _ in transfers.loads])
    columns.put("pages", places_of([page for _, page in transfers.loads]))


def _get_transfers(columns: ColumnReader[PlanFacts], number: int, pages: PagePart | None) -> PlacedTransfers:
    """Return the transfers that `_put_transfers` wrote. Raises WireError for places that are none."""
    if pages is None:
        raise WireError("A plan names pages, and this worker sees none.")
    saves, into = columns.items("saves"), columns.items("into")
    loaded, sources = columns.items("loads"), columns.items("pages")
    check_equal_lens("saves", saves, into)
    check_equal_lens("loads", loaded, sources)
    try:
        loads = [(block_id, pages.at(place)) for block_id, place in zip(loaded, sources, strict=True)]
        return PlacedTransfers(number, saves, loads, [pages.at(place) for place in into])
    except ValueError as error:
        raise WireError(f"A plan names a page that does not exist: {error}.") from error
